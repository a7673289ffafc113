/* Responding to calls. */
#include "call_frames.h"

/* Whether a response needs no more than its tensors: it succeeded, and none is wanted as classes. */
static int is_plain(const UnaryCalls *self, PyObject *request, PyObject *response)
{
    PyObject *parameters = get(self, ANSWER, response, A_PARAMETERS), *wanted = get(self, REQUEST, request, Q_OUTPUTS);
    if (get(self, ANSWER, response, A_FAILURE) != Py_None || parameters == NULL || !PyDict_CheckExact(parameters) ||
        wanted == NULL || !PyTuple_CheckExact(wanted))
        return 0;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(wanted); i++) {
        PyObject *output = PyTuple_GET_ITEM(wanted, i);
        long long classes;
        if (!is(self, WANTED, output) || !get_number(get(self, WANTED, output, W_CLASSIFICATION), &classes) || classes)
            return 0;
    }
    return 1;
}

/* Whether DATA of a length may be sent now, in frames of a size. */
static int may_send(const UnaryCalls *self, PyObject *stream, PyObject *output, long long length, long long *window,
                    long long *frame_size)
{
    long long of_stream;
    return length - PREFIX_SIZE <= self->max_message && get_number(get(self, STREAM, stream, S_WINDOW), &of_stream) &&
           get_number(get(self, OUTPUT, output, O_WINDOW), window) &&
           get_number(get(self, OUTPUT, output, O_FRAME_SIZE), frame_size) && length <= of_stream && length <= *window;
}

/* Release what a call holds, as `GrpcCall._close`. */
static int close_call(UnaryCalls *self, PyObject *call)
{
    long long calls, buffered, of_call;
    PyObject *timer = get(self, CALL, call, U_TIMER);
    set(self, CALL, call, U_ON_CANCEL, Py_NewRef(self->on_cancel)); /* breaks a reference cycle */
    set(self, CALL, call, U_OVER, Py_NewRef(Py_True));
    if (!get_number(get(self, CALL, call, U_BUFFERED), &of_call) || get_count(self, texts.calls, &calls) < 0 ||
        get_count(self, texts.buffered, &buffered) < 0 || set_count(self, texts.calls, calls - 1) < 0 ||
        set_count(self, texts.buffered, buffered - of_call) < 0)
        return -1;
    set(self, CALL, call, U_BUFFERED, Py_NewRef(self->zero));
    PyObject *cancelled = timer == Py_None ? Py_NewRef(timer) : PyObject_CallMethodNoArgs(timer, texts.cancel);
    Py_XDECREF(cancelled);
    return cancelled == NULL ? -1 : 0;
}

/* End a stream whose last frame is to be sent, as `Stream._finish`. */
static int finish_stream(UnaryCalls *self, PyObject *stream, PyObject *output)
{
    PyObject *streams = get(self, OUTPUT, output, O_STREAMS), *on_idle = get(self, OUTPUT, output, O_ON_IDLE);
    set(self, STREAM, stream, S_OVER, Py_NewRef(Py_True));
    if (PyDict_DelItem(streams, get(self, STREAM, stream, S_ID)) < 0)
        return -1;
    set(self, STREAM, stream, S_RECEIVER, Py_NewRef(Py_None));
    if (on_idle == Py_None || PyDict_GET_SIZE(streams) != 0)
        return 0;
    PyObject *called = PyObject_CallNoArgs(on_idle);
    Py_XDECREF(called);
    return called == NULL ? -1 : 0;
}

/* As `Output.schedule_flush`. */
static int schedule_flush(UnaryCalls *self, PyObject *output)
{
    PyObject *flush = PyObject_GetAttr(output, texts.flush), *loop = get(self, OUTPUT, output, O_LOOP);
    PyObject *scheduled = flush == NULL ? NULL : PyObject_CallMethodOneArg(loop, texts.call_soon, flush);
    Py_XDECREF(flush);
    Py_XDECREF(scheduled);
    if (scheduled != NULL)
        set(self, OUTPUT, output, O_CORKED, Py_NewRef(Py_True));
    return scheduled == NULL ? -1 : 0;
}

/* Add to a slot that has a number. */
static int add(UnaryCalls *self, enum call_type type, PyObject *object, int number, long long more)
{
    long long count;
    return get_number(get(self, type, object, number), &count) ? set_number(self, type, object, number, count + more) : 0;
}

/* Send the frames of a call, which ends it. */
static int send(UnaryCalls *self, PyObject *call, PyObject *stream, PyObject *output, PyObject *frames, long long count,
                long long window)
{
    PyObject *keepalive = get(self, OUTPUT, output, O_KEEPALIVE), *queue = get(self, OUTPUT, output, O_FRAMES);
    if (close_call(self, call) < 0 || PyList_SetSlice(queue, PyList_GET_SIZE(queue), PyList_GET_SIZE(queue), frames) < 0 ||
        set_number(self, OUTPUT, output, O_WINDOW, window) < 0 || add(self, KEEPALIVE, keepalive, K_SENT, count) < 0)
        return -1;
    if (finish_stream(self, stream, output) < 0)
        return -1;
    return get(self, OUTPUT, output, O_CORKED) == Py_True ? 0 : schedule_flush(self, output);
}

/* Whether a call may be answered here: all of it is there, and its request has arrived. */
static int is_open(const UnaryCalls *self, PyObject *call, PyObject *stream)
{
    PyObject *output = is(self, STREAM, stream) ? get(self, STREAM, stream, S_OUTPUT) : NULL;
    return is(self, OUTPUT, output) && get(self, STREAM, stream, S_ENDED) == Py_True &&
           get(self, STREAM, stream, S_OVER) == Py_False && get(self, STREAM, stream, S_QUEUE) == Py_None &&
           get(self, CALL, call, U_OVER) == Py_False && get(self, CALL, call, U_HEADERS_SENT) == Py_False &&
           is(self, KEEPALIVE, get(self, OUTPUT, output, O_KEEPALIVE)) &&
           PyList_CheckExact(get(self, OUTPUT, output, O_FRAMES)) &&
           PyDict_CheckExact(get(self, OUTPUT, output, O_STREAMS));
}

int respond_to_call(UnaryCalls *self, PyObject *call, PyObject *request, PyObject *response)
{
    struct message message;
    struct cut cut;
    long long window, frame_size;
    if (!is(self, CALL, call) || !is(self, REQUEST, request) || !is(self, ANSWER, response))
        return 0;
    PyObject *stream = get(self, CALL, call, U_STREAM);
    if (!is_open(self, call, stream) || !is_plain(self, request, response) ||
        !get_number(get(self, STREAM, stream, S_ID), &cut.stream))
        return 0;
    put_message(self, &message, request, response);
    long long length = message.to.at - message.bytes + (long long)message.apart;
    PyObject *output = get(self, STREAM, stream, S_OUTPUT);
    if (message.to.failed || !may_send(self, stream, output, length, &window, &frame_size))
        return 0;
    cut.left = (size_t)length;
    cut.frame_size = (size_t)frame_size;
    cut.room = 0;
    PyObject *frames = make_frames(self, &cut, &message);
    /* Python queues what is more than a frame, and counts each. */
    long long count = length > frame_size ? 1 + (length + frame_size - 1) / frame_size : 1;
    if (frames == NULL || (count > 1 && add(self, OUTPUT, output, O_DRAINED, length) < 0)) {
        Py_XDECREF(frames);
        return -1;
    }
    Py_INCREF(stream);
    Py_INCREF(output);
    int sent = send(self, call, stream, output, frames, count, window - length);
    Py_DECREF(output);
    Py_DECREF(stream);
    Py_DECREF(frames);
    return sent < 0 ? -1 : 1;
}
