/* Receiving DATA of a call's only message, in frames and pieces of any length. */
#include "calls_receive.h"

#include <string.h>

enum { PREFIX_SIZE = 5, GRANTS = 4 }; /* `grant` sends a quarter of the window at once */

/* Return whether a sum, of a value and the length of a frame, stays within a limit. */
static int adds_up(PyObject *value, long long length, long long limit, long long *sum)
{
    if (!get_number(value, sum))
        return 0;
    *sum += length;
    return *sum <= limit;
}

/* How much has been received, once a frame counts too. */
struct received {
    long long of_connection, of_stream, of_call, of_server;
};

/* Count a frame of DATA; return 1 if it is of an open call, and within all limits, which nothing is told of yet. */
static int admit(UnaryCalls *self, PyObject *connection, PyObject *stream, Py_ssize_t length, struct received *counts)
{
    PyObject *call = is(self, STREAM, stream) ? get(self, STREAM, stream, S_RECEIVER) : NULL;
    if (!is(self, CALL, call) || get(self, STREAM, stream, S_ENDED) != Py_False ||
        !adds_up(get(self, CONNECTION, connection, C_RECEIVED), length, self->connection_window, &counts->of_connection) ||
        !adds_up(get(self, STREAM, stream, S_RECEIVED), length, self->stream_window, &counts->of_stream) ||
        !adds_up(get(self, CALL, call, U_BUFFERED), length, self->max_buffered, &counts->of_call))
        return 0;
    if (get_count(self, texts.buffered, &counts->of_server) < 0)
        return -1;
    counts->of_server += length;
    return counts->of_server <= self->max_buffered;
}

static int tell(UnaryCalls *self, PyObject *connection, PyObject *stream, PyObject *call, const struct received *counts)
{
    return set_number(self, CONNECTION, connection, C_RECEIVED, counts->of_connection) < 0 ||
                   set_number(self, STREAM, stream, S_RECEIVED, counts->of_stream) < 0 ||
                   set_number(self, CALL, call, U_BUFFERED, counts->of_call) < 0 ||
                   set_count(self, texts.buffered, counts->of_server) < 0
               ? -1
               : 0;
}

/* Have a call answered whose message, a reference that is taken, has come with its end. */
static int handle(UnaryCalls *self, PyObject *stream, PyObject *call, PyObject *message)
{
    set(self, STREAM, stream, S_ENDED, Py_NewRef(Py_True));
    PyObject *arguments[] = {Py_NewRef(call), message}, *handler = Py_NewRef(get(self, CALL, call, U_HANDLER));
    PyObject *answer = PyObject_Vectorcall(handler, arguments, 2, NULL);
    Py_DECREF(handler);
    Py_DECREF(arguments[0]);
    Py_DECREF(message);
    Py_XDECREF(answer);
    return answer == NULL ? -1 : 1;
}

/* Return the size of the message, not compressed, that begins with some DATA; 0 for what Python has to judge. */
static long long message_size(const UnaryCalls *self, const struct frame *data)
{
    long long size = data->length < PREFIX_SIZE || data->payload[0] ? 0 : big_endian(data->payload + 1);
    return size <= self->max_message ? size : 0;
}

/* Have a call make the memory for its message, and what reads it, a borrowed reference; NULL with an error, or without one
where there is no memory, which Python tells the client. */
static PyObject *begin_message(UnaryCalls *self, PyObject *call, const struct frame *data, long long size)
{
    PyObject *at = PyLong_FromSsize_t(tensor_offset(data->payload + PREFIX_SIZE, data->length - PREFIX_SIZE));
    PyObject *nbytes = at == NULL ? NULL : PyLong_FromLongLong(size);
    PyObject *made = nbytes == NULL ? NULL : PyObject_CallMethodObjArgs(call, texts.begin_message, nbytes, at, NULL);
    Py_XDECREF(at);
    Py_XDECREF(nbytes);
    Py_XDECREF(made);
    PyObject *reader = made == NULL ? NULL : get(self, CALL, call, U_READER);
    if (made != NULL && !is(self, MESSAGE, reader))
        PyErr_SetString(PyExc_TypeError, "no reader of a message was made");
    if (PyErr_Occurred() && PyErr_ExceptionMatches(PyExc_MemoryError))
        PyErr_Clear();
    return PyErr_Occurred() ? NULL : reader;
}

/* Copy a piece to its place in the memory of a message. */
static int fill(PyObject *memory, long long at, const unsigned char *bytes, Py_ssize_t size)
{
    Py_buffer view;
    if (PyObject_GetBuffer(memory, &view, PyBUF_WRITABLE) < 0)
        return -1;
    int fits = at + size <= view.len;
    if (fits)
        memcpy((char *)view.buf + at, bytes, (size_t)size);
    else
        PyErr_SetString(PyExc_ValueError, "a message is longer than its memory");
    PyBuffer_Release(&view);
    return fits ? 0 : -1;
}

/* Hand over a message that is complete. */
static int end_message(UnaryCalls *self, PyObject *stream, PyObject *call, PyObject *reader)
{
    long long completed;
    PyObject *message = PyObject_CallMethod(get(self, MESSAGE, reader, M_BUFFER), "toreadonly", NULL);
    if (message == NULL || !get_number(get(self, MESSAGE, reader, M_COMPLETED), &completed) ||
        set_number(self, MESSAGE, reader, M_COMPLETED, completed + 1) < 0 || set_number(self, MESSAGE, reader, M_SIZE, -1) < 0) {
        Py_XDECREF(message);
        return -1;
    }
    set(self, MESSAGE, reader, M_FILLED, Py_NewRef(self->zero));
    set(self, MESSAGE, reader, M_BUFFER, Py_NewRef(Py_None));
    return handle(self, stream, call, message);
}

/* Receive DATA of a longer message, which ends with its call. */
static int receive_piece(UnaryCalls *self, PyObject *connection, PyObject *stream, const struct frame *data,
                         const struct received *counts)
{
    PyObject *call = get(self, STREAM, stream, S_RECEIVER), *reader = get(self, CALL, call, U_READER);
    long long size, filled = 0, credit = 0;
    int begins = reader == Py_None, ends = data->flags == END_STREAM;
    Py_ssize_t length = data->length - (begins ? PREFIX_SIZE : 0);
    if (begins ? !(size = message_size(self, data))
               : !is(self, MESSAGE, reader) || get(self, MESSAGE, reader, M_ALLOCATED) != Py_True ||
                     !get_number(get(self, MESSAGE, reader, M_SIZE), &size) ||
                     !get_number(get(self, MESSAGE, reader, M_FILLED), &filled))
        return 0;
    if (ends ? filled + length != size
             : data->flags || filled + length >= size || data->length == 0 ||
                   !adds_up(get(self, STREAM, stream, S_CREDIT), data->length, self->stream_window / GRANTS - 1, &credit))
        return 0;
    if (begins && (reader = begin_message(self, call, data, size)) == NULL)
        return PyErr_Occurred() ? -1 : 0;
    Py_INCREF(call);
    int done = fill(get(self, MESSAGE, reader, M_BUFFER), filled, data->payload + (data->length - length), length);
    if (done == 0)
        done = tell(self, connection, stream, call, counts);
    if (done == 0 && ends)
        done = end_message(self, stream, call, reader);
    else if (done == 0)
        done = set_number(self, MESSAGE, reader, M_FILLED, filled + length) < 0 ||
                       set_number(self, STREAM, stream, S_CREDIT, credit) < 0
                   ? -1
                   : 1;
    Py_DECREF(call);
    return done;
}

int receive_data(UnaryCalls *self, PyObject *connection, const struct frame *data)
{
    PyObject *stream = find_stream(self, connection, data->stream);
    struct received counts;
    if (admit(self, connection, stream, data->length, &counts) <= 0)
        return PyErr_Occurred() ? -1 : 0;
    PyObject *call = get(self, STREAM, stream, S_RECEIVER);
    int is_short = data->length < LONG && data->flags == END_STREAM && get(self, CALL, call, U_READER) == Py_None;
    if (!is_short || data->length < PREFIX_SIZE)
        return receive_piece(self, connection, stream, data, &counts);
    long long size = big_endian(data->payload + 1);
    if (data->payload[0] || size > self->max_message || size != data->length - PREFIX_SIZE)
        return 0;
    PyObject *message = PyBytes_FromStringAndSize((const char *)data->payload + PREFIX_SIZE, (Py_ssize_t)size);
    if (message == NULL || tell(self, connection, stream, call, &counts) < 0) {
        Py_XDECREF(message);
        return -1;
    }
    return handle(self, stream, call, message);
}
