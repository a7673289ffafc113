/* Receiving: whole header blocks, WINDOW_UPDATE, and DATA with all of a call's message. */
#include "calls.h"

#include <string.h>

enum { DATA = 0, HEADERS_FRAME = 1, WINDOW_UPDATE = 8 };
enum { END_STREAM = 1, END_HEADERS = 4, PADDED = 8, PRIORITISED = 32 };
enum { HEAD_SIZE = 9, PREFIX_SIZE = 5, LONG = 16384 };
static const long long MAX_WINDOW = 0x7fffffff;

struct frame {
    const unsigned char *payload;
    Py_ssize_t length;
    int kind, flags;
    long long stream;
};

/* Of the functions below, each returns whether it has handled the frame: 1, 0 if that is left to Python, then without
having changed anything, or -1 with an error. */
typedef int (*receiver)(UnaryCalls *self, PyObject *connection, const struct frame *frame);

static uint32_t big_endian(const unsigned char *bytes)
{
    return (uint32_t)bytes[0] << 24 | (uint32_t)bytes[1] << 16 | (uint32_t)bytes[2] << 8 | bytes[3];
}

/* Return a stream that is open, borrowed; NULL for none, and with an error. */
static PyObject *find_stream(UnaryCalls *self, PyObject *connection, long long number)
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
    if (call != NULL && get_count(self, self->calls, &calls) == 0 && set_count(self, self->calls, calls + 1) == 0 &&
        set_number(self, CONNECTION, connection, C_LAST_STREAM, number) == 0) {
        set(self, STREAM, stream, S_RECEIVER, Py_NewRef(call));
        done = PyDict_SetItem(get(self, CONNECTION, connection, C_STREAMS), get(self, STREAM, stream, S_ID), stream);
    }
    if (done == 0 && PyTuple_GET_ITEM(head, TIMEOUT_S) != Py_None) {
        PyObject *started = PyObject_CallMethodNoArgs(call, self->start_timer);
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
    if (get_count(self, self->calls, &calls) < 0)
        return -1;
    return calls >= self->max_calls ? 0 : enter(self, connection, frame->stream, head, handler);
}

/* Open a call as Python does, which may refuse it. */
static int open_call(UnaryCalls *self, PyObject *connection, const struct frame *frame, PyObject *head)
{
    PyObject *stream = PyLong_FromLongLong(frame->stream), *flags = PyLong_FromLong(frame->flags);
    PyObject *opened = stream == NULL || flags == NULL
                           ? NULL
                           : PyObject_CallMethodObjArgs(connection, self->open, stream, flags, head, NULL);
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
        opened = open_call(self, connection, frame, head);
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
    PyObject *counted = limit == NULL ? NULL : PyObject_CallMethodObjArgs(keepalive, self->count, Py_False, limit, NULL);
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

/* Return whether a frame is the one message of a call, not compressed. */
static int has_message(const UnaryCalls *self, const struct frame *frame)
{
    Py_ssize_t size = frame->length - PREFIX_SIZE;
    return frame->flags == END_STREAM && size >= 0 && frame->length < LONG && size <= self->max_message &&
           frame->payload[0] == 0 && big_endian(frame->payload + 1) == (size_t)size;
}

/* Return whether a sum, of a value and the length of a frame, stays within a limit. */
static int adds_up(PyObject *value, long long length, long long limit, long long *sum)
{
    if (!get_number(value, sum))
        return 0;
    *sum += length;
    return *sum <= limit;
}

static int receive_data(UnaryCalls *self, PyObject *connection, const struct frame *frame)
{
    PyObject *stream = has_message(self, frame) ? find_stream(self, connection, frame->stream) : NULL;
    if (!is(self, STREAM, stream))
        return PyErr_Occurred() ? -1 : 0;
    PyObject *call = get(self, STREAM, stream, S_RECEIVER);
    long long of_connection, of_stream, of_call, buffered;
    if (!is(self, CALL, call) || get(self, STREAM, stream, S_ENDED) != Py_False ||
        get(self, CALL, call, U_READER) != Py_None ||
        !adds_up(get(self, CONNECTION, connection, C_RECEIVED), frame->length, self->connection_window, &of_connection) ||
        !adds_up(get(self, STREAM, stream, S_RECEIVED), frame->length, self->stream_window, &of_stream) ||
        !adds_up(get(self, CALL, call, U_BUFFERED), frame->length, self->max_buffered, &of_call))
        return 0;
    if (get_count(self, self->buffered, &buffered) < 0)
        return -1;
    if (buffered + frame->length > self->max_buffered)
        return 0;
    PyObject *message = PyBytes_FromStringAndSize((const char *)frame->payload + PREFIX_SIZE, frame->length - PREFIX_SIZE);
    if (message == NULL || set_number(self, CONNECTION, connection, C_RECEIVED, of_connection) < 0 ||
        set_number(self, STREAM, stream, S_RECEIVED, of_stream) < 0 ||
        set_number(self, CALL, call, U_BUFFERED, of_call) < 0 ||
        set_count(self, self->buffered, buffered + frame->length) < 0) {
        Py_XDECREF(message);
        return -1;
    }
    set(self, STREAM, stream, S_ENDED, Py_NewRef(Py_True));
    PyObject *arguments[] = {Py_NewRef(call), message}, *handler = Py_NewRef(get(self, CALL, call, U_HANDLER));
    PyObject *answer = PyObject_Vectorcall(handler, arguments, 2, NULL);
    Py_DECREF(handler);
    Py_DECREF(arguments[0]);
    Py_DECREF(message);
    Py_XDECREF(answer);
    return answer == NULL ? -1 : 1;
}

static receiver receiver_of(int kind)
{
    return kind == HEADERS_FRAME ? receive_headers
           : kind == DATA        ? receive_data
           : kind == WINDOW_UPDATE ? receive_window_update
                                   : NULL;
}

/* Whether the next byte begins a frame, of a connection with nothing unusual about it. */
static int between_frames(UnaryCalls *self, PyObject *connection)
{
    PyObject *reader = get(self, CONNECTION, connection, C_READER), *streams = get(self, CONNECTION, connection, C_STREAMS);
    if (!is(self, READER, reader) || get(self, CONNECTION, connection, C_BLOCK) != Py_None || streams == NULL ||
        !PyDict_CheckExact(streams) || !is(self, OUTPUT, get(self, CONNECTION, connection, C_OUTPUT)))
        return 0;
    PyObject *rest = get(self, READER, reader, R_REST);
    long long missing;
    return rest != NULL && PyByteArray_CheckExact(rest) && PyByteArray_GET_SIZE(rest) == 0 &&
           get_number(get(self, READER, reader, R_MISSING), &missing) && missing == 0;
}

/* Return the bytes of the frames that were handled; -1 with an error. */
static Py_ssize_t receive(UnaryCalls *self, PyObject *connection, const unsigned char *bytes, Py_ssize_t size)
{
    Py_ssize_t at = 0;
    while (size - at >= HEAD_SIZE) {
        const unsigned char *head = bytes + at;
        struct frame frame = {head + HEAD_SIZE, big_endian(head) >> 8, head[3], head[4], big_endian(head + 5) & MAX_WINDOW};
        receiver of_kind = frame.length <= size - at - HEAD_SIZE ? receiver_of(frame.kind) : NULL;
        int handled = of_kind == NULL ? 0 : of_kind(self, connection, &frame);
        if (handled < 0)
            return -1;
        if (!handled)
            break;
        at += HEAD_SIZE + frame.length;
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
    Py_ssize_t done = between_frames(self, arguments[0]) ? receive(self, arguments[0], data.buf, data.len) : 0;
    PyBuffer_Release(&data);
    return done < 0 ? NULL : PyLong_FromSsize_t(done);
}
