/* Receiving: the frames of a connection, whole header blocks and WINDOW_UPDATE. */
#include "calls_receive.h"

enum { DATA = 0, HEADERS_FRAME = 1, WINDOW_UPDATE = 8 };
enum { END_HEADERS = 4, PADDED = 8, PRIORITISED = 32 };
enum { HEAD_SIZE = 9 };
static const long long MAX_WINDOW = 0x7fffffff;

/* Of the functions below, each returns whether it has handled the frame: 1, 0 if that is left to Python, then without
having changed anything, or -1 with an error. */
typedef int (*receiver)(UnaryCalls *self, PyObject *connection, const struct frame *frame);

PyObject *find_stream(UnaryCalls *self, PyObject *connection, long long number)
{
    PyObject *key = PyLong_FromLongLong(number);
    PyObject *found = key == NULL ? NULL : PyDict_GetItemWithError(get(self, CONNECTION, connection, C_STREAMS), key);
    Py_XDECREF(key);
    return found;
}

/* Make the stream and the call of one that is opened; a new reference. */
static PyObject *make_stream(UnaryCalls *self, PyObject *output, long long number)
{
    PyObject *id = PyLong_FromLongLong(number);
    PyObject *stream = id == NULL ? NULL : self->types[STREAM]->tp_alloc(self->types[STREAM], 0);
    if (stream == NULL) {
        Py_XDECREF(id);
        return NULL;
    }
    set(self, STREAM, stream, S_OUTPUT, Py_NewRef(output));
    set(self, STREAM, stream, S_ID, id);
    set(self, STREAM, stream, S_RECEIVER, Py_NewRef(Py_None));
    set(self, STREAM, stream, S_WINDOW, Py_NewRef(get(self, OUTPUT, output, O_INITIAL_WINDOW)));
    set(self, STREAM, stream, S_RECEIVED, Py_NewRef(self->zero));
    set(self, STREAM, stream, S_CREDIT, Py_NewRef(self->zero));
    set(self, STREAM, stream, S_ENDED, Py_NewRef(Py_False));
    set(self, STREAM, stream, S_OVER, Py_NewRef(Py_False));
    set(self, STREAM, stream, S_QUEUE, Py_NewRef(Py_None));
    set(self, STREAM, stream, S_TRAILERS, Py_NewRef(Py_None));
    set(self, STREAM, stream, S_DRAINED, Py_NewRef(Py_None));
    return stream;
}

static PyObject *make_call(UnaryCalls *self, PyObject *stream, PyObject *head, PyObject *handler)
{
    PyObject *call = self->types[CALL]->tp_alloc(self->types[CALL], 0);
    if (call == NULL)
        return NULL;
    set(self, CALL, call, U_STATE, Py_NewRef(self->state));
    set(self, CALL, call, U_STREAM, Py_NewRef(stream));
    set(self, CALL, call, U_HEAD, Py_NewRef(head));
    set(self, CALL, call, U_READER, Py_NewRef(Py_None));
    set(self, CALL, call, U_BUFFERED, Py_NewRef(self->zero));
    set(self, CALL, call, U_HEADERS_SENT, Py_NewRef(Py_False));
    set(self, CALL, call, U_OVER, Py_NewRef(Py_False));
    set(self, CALL, call, U_TIMER, Py_NewRef(Py_None));
    set(self, CALL, call, U_DEADLINE, Py_NewRef(self->no_deadline));
    set(self, CALL, call, U_HANDLER, Py_NewRef(handler));
    set(self, CALL, call, U_MESSAGE, Py_NewRef(Py_None));
    set(self, CALL, call, U_ON_CANCEL, Py_NewRef(self->on_cancel));
    return call;
}

/* Enter a new stream with its call. */
static int enter(UnaryCalls *self, PyObject *connection, long long number, PyObject *head, PyObject *handler)
{
    PyObject *stream = make_stream(self, get(self, CONNECTION, connection, C_OUTPUT), number);
    PyObject *call = stream == NULL ? NULL : make_call(self, stream, head, handler);
    int done = -1;
    long long calls;
    if (call != NULL && get_count(self, texts.calls, &calls) == 0 && set_count(self, texts.calls, calls + 1) == 0 &&
        set_number(self, CONNECTION, connection, C_LAST_STREAM, number) == 0) {
        set(self, STREAM, stream, S_RECEIVER, Py_NewRef(call));
        done = PyDict_SetItem(get(self, CONNECTION, connection, C_STREAMS), get(self, STREAM, stream, S_ID), stream);
    }
    if (done == 0 && PyTuple_GET_ITEM(head, TIMEOUT_S) != Py_None) {
        PyObject *started = PyObject_CallMethodNoArgs(call, texts.start_timer);
        done = started == NULL ? -1 : 0;
        Py_XDECREF(started);
    }
    Py_XDECREF(stream);
    Py_XDECREF(call);
    return done < 0 ? -1 : 1;
}

/* Open a call here; 0 if that is left to Python. */
static int open_plain(UnaryCalls *self, PyObject *connection, const struct frame *frame, PyObject *head)
{
    long long last, calls, refusal;
    PyObject *handler = PyDict_GetItemWithError(self->handlers, PyTuple_GET_ITEM(head, PATH));
    if (handler == NULL)
        return PyErr_Occurred() ? -1 : 0;
    if (frame->flags != END_HEADERS || !(frame->stream & 1) || get(self, CONNECTION, connection, C_DRAINING) != Py_False ||
        PyDict_GET_SIZE(get(self, CONNECTION, connection, C_STREAMS)) >= self->max_streams ||
        !get_number(get(self, CONNECTION, connection, C_LAST_STREAM), &last) || frame->stream <= last ||
        !get_number(PyTuple_GET_ITEM(head, REFUSAL), &refusal) || refusal)
        return 0;
    if (get_count(self, texts.calls, &calls) < 0)
        return -1;
    return calls >= self->max_calls ? 0 : enter(self, connection, frame->stream, head, handler);
}

/* Open a call as Python does, which may refuse it. */
static int open_call(PyObject *connection, const struct frame *frame, PyObject *head)
{
    PyObject *stream = PyLong_FromLongLong(frame->stream), *flags = PyLong_FromLong(frame->flags);
    PyObject *opened = stream == NULL || flags == NULL
                           ? NULL
                           : PyObject_CallMethodObjArgs(connection, texts.open, stream, flags, head, NULL);
    Py_XDECREF(stream);
    Py_XDECREF(flags);
    Py_XDECREF(opened);
    return opened == NULL ? -1 : 1;
}

static int receive_headers(UnaryCalls *self, PyObject *connection, const struct frame *frame)
{
    PyObject *headers = get(self, CONNECTION, connection, C_HEADERS);
    if ((frame->flags & (PADDED | END_HEADERS | PRIORITISED)) != END_HEADERS || frame->length == 0 ||
        frame->length > self->max_header || headers == NULL || Py_TYPE(headers) != self->decoder_type)
        return 0;
    PyObject *head = read_block(headers, frame->payload, frame->length);
    int opened = head == NULL ? -1 : open_plain(self, connection, frame, head);
    if (opened == 0)
        opened = open_call(connection, frame, head);
    Py_XDECREF(head);
    return opened;
}

/* Count a control frame, as `Keepalive.count` does. */
static int count_frame(UnaryCalls *self, PyObject *keepalive)
{
    long long second, count;
    PyObject *heard = get(self, KEEPALIVE, keepalive, K_HEARD), *counts = get(self, KEEPALIVE, keepalive, K_COUNTS);
    if (PyFloat_CheckExact(heard) && get_number(get(self, KEEPALIVE, keepalive, K_SECOND), &second) &&
        (long long)PyFloat_AS_DOUBLE(heard) == second && PyList_CheckExact(counts) && PyList_GET_SIZE(counts) == 2 &&
        get_number(PyList_GET_ITEM(counts, 0), &count) && count < self->max_control_frames) {
        PyObject *next = PyLong_FromLongLong(count + 1);
        return next == NULL ? -1 : PyList_SetItem(counts, 0, next);
    }
    PyObject *limit = PyLong_FromLongLong(self->max_control_frames);
    PyObject *counted = limit == NULL ? NULL : PyObject_CallMethodObjArgs(keepalive, texts.count, Py_False, limit, NULL);
    Py_XDECREF(limit);
    Py_XDECREF(counted);
    return counted == NULL ? -1 : 0;
}

/* Return whether a window may be widened with nothing else to do: no data waits for it. */
static int widens(PyObject *window, PyObject *waiting, long long size, long long *wider)
{
    int waits = waiting == NULL ? -1 : PyObject_IsTrue(waiting);
    if (waits < 0)
        PyErr_Clear();
    if (waits || !get_number(window, wider))
        return 0;
    *wider += size;
    return size && *wider <= MAX_WINDOW;
}

static int receive_window_update(UnaryCalls *self, PyObject *connection, const struct frame *frame)
{
    PyObject *output = get(self, CONNECTION, connection, C_OUTPUT), *keepalive = get(self, OUTPUT, output, O_KEEPALIVE);
    if (frame->length != 4 || !is(self, KEEPALIVE, keepalive))
        return 0;
    long long size = big_endian(frame->payload) & MAX_WINDOW, wider;
    if (!frame->stream) {
        if (!widens(get(self, OUTPUT, output, O_WINDOW), get(self, OUTPUT, output, O_WAITING), size, &wider))
            return 0;
        return count_frame(self, keepalive) < 0 ? -1 : set_number(self, OUTPUT, output, O_WINDOW, wider) == 0 ? 1 : -1;
    }
    PyObject *stream = find_stream(self, connection, frame->stream);
    if (!is(self, STREAM, stream))
        return PyErr_Occurred() ? -1 : 0;
    if (!widens(get(self, STREAM, stream, S_WINDOW), get(self, STREAM, stream, S_QUEUE), size, &wider))
        return 0;
    return count_frame(self, keepalive) < 0 ? -1 : set_number(self, STREAM, stream, S_WINDOW, wider) == 0 ? 1 : -1;
}

static receiver receiver_of(int kind)
{
    return kind == HEADERS_FRAME ? receive_headers
           : kind == DATA        ? receive_data
           : kind == WINDOW_UPDATE ? receive_window_update
                                   : NULL;
}

/* Whether the next byte begins a frame, or goes on with one of which so much is missing, of a connection with nothing
unusual about it. */
static int is_usual(UnaryCalls *self, PyObject *connection, long long *missing)
{
    PyObject *reader = get(self, CONNECTION, connection, C_READER), *streams = get(self, CONNECTION, connection, C_STREAMS);
    if (!is(self, READER, reader) || get(self, CONNECTION, connection, C_BLOCK) != Py_None || streams == NULL ||
        !PyDict_CheckExact(streams) || !is(self, OUTPUT, get(self, CONNECTION, connection, C_OUTPUT)))
        return 0;
    PyObject *rest = get(self, READER, reader, R_REST);
    return rest != NULL && PyByteArray_CheckExact(rest) && PyByteArray_GET_SIZE(rest) == 0 &&
           get_number(get(self, READER, reader, R_MISSING), missing);
}

/* Go on with a frame of DATA; return the bytes of it that were handled. */
static Py_ssize_t receive_missing(UnaryCalls *self, PyObject *connection, const unsigned char *bytes, Py_ssize_t size,
                                  long long missing)
{
    PyObject *reader = get(self, CONNECTION, connection, C_READER);
    long long flags, stream;
    if (!get_number(get(self, READER, reader, R_FLAGS), &flags) || !get_number(get(self, READER, reader, R_STREAM), &stream))
        return 0;
    if (size >= missing)
        size = (Py_ssize_t)missing;
    struct frame piece = {bytes, size, DATA, size == missing ? (int)flags : 0, stream};
    int handled = receive_data(self, connection, &piece);
    if (handled > 0 && set_number(self, READER, reader, R_MISSING, missing - size) < 0)
        handled = -1;
    return handled < 0 ? -1 : handled ? size : 0;
}

/* Receive the beginning of a frame of DATA whose end has not come. */
static int receive_beginning(UnaryCalls *self, PyObject *connection, const struct frame *whole, Py_ssize_t size)
{
    PyObject *reader = get(self, CONNECTION, connection, C_READER);
    struct frame piece = {whole->payload, size, DATA, 0, whole->stream};
    if (whole->kind != DATA || whole->flags & PADDED || size == 0)
        return 0;
    int handled = receive_data(self, connection, &piece);
    if (handled > 0 && (set_number(self, READER, reader, R_LENGTH, whole->length) < 0 ||
                        set_number(self, READER, reader, R_MISSING, whole->length - size) < 0 ||
                        set_number(self, READER, reader, R_FLAGS, whole->flags) < 0 ||
                        set_number(self, READER, reader, R_STREAM, whole->stream) < 0))
        handled = -1;
    return handled;
}

/* Return the bytes of the frames that were handled; -1 with an error. */
static Py_ssize_t receive(UnaryCalls *self, PyObject *connection, const unsigned char *bytes, Py_ssize_t size)
{
    long long missing;
    Py_ssize_t at = 0;
    if (!is_usual(self, connection, &missing))
        return 0;
    if (missing && ((at = receive_missing(self, connection, bytes, size, missing)) <= 0 || at < missing))
        return at;
    /* Python's first long frame has the connection read into memory that is there already. */
    Py_ssize_t longest = get(self, CONNECTION, connection, C_IS_BUFFERED) == Py_True ? self->max_frame : LONG - 1;
    while (size - at > HEAD_SIZE) {
        const unsigned char *head = bytes + at;
        struct frame frame = {head + HEAD_SIZE, big_endian(head) >> 8, head[3], head[4], big_endian(head + 5) & MAX_WINDOW};
        Py_ssize_t received = size - at - HEAD_SIZE;
        receiver of_kind = frame.length <= longest ? receiver_of(frame.kind) : NULL;
        int handled = of_kind == NULL            ? 0
                      : frame.length <= received ? of_kind(self, connection, &frame)
                                                 : receive_beginning(self, connection, &frame, received);
        if (handled < 0)
            return -1;
        if (!handled)
            break;
        at += HEAD_SIZE + (frame.length <= received ? frame.length : received);
    }
    return at;
}

PyObject *receive_calls(UnaryCalls *self, PyObject *const *arguments, Py_ssize_t count)
{
    Py_buffer data;
    if (count != 2 || !is(self, CONNECTION, arguments[0])) {
        PyErr_SetString(PyExc_TypeError, "connection, data");
        return NULL;
    }
    if (PyObject_GetBuffer(arguments[1], &data, PyBUF_SIMPLE) < 0)
        return NULL;
    Py_ssize_t done = receive(self, arguments[0], data.buf, data.len);
    PyBuffer_Release(&data);
    return done < 0 ? NULL : PyLong_FromSsize_t(done);
}
