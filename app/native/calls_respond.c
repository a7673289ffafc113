/* Responding: the message of a response, as `app/protocol/grpc/responses.py` writes it, within its three frames. */
#include "calls.h"

#include <string.h>

enum { HEAD_SIZE = 9, PREFIX_SIZE = 5, LONGEST = 16384, MAX_OUTPUTS = 16 };
enum { DATA = 0, HEADERS_FRAME = 1, END_STREAM = 1, END_HEADERS = 4 };
enum { MODEL_NAME_TAG = 0x0a, MODEL_VERSION_TAG = 0x12, ID_TAG = 0x1a, PARAMETER_TAG = 0x22, OUTPUT_TAG = 0x2a, RAW_TAG = 0x32 };
enum { KEY_TAG = 0x0a, VALUE_TAG = 0x12, BOOL_TAG = 0x08, INT64_TAG = 0x10 }; /* of a parameter */
enum { NAME_TAG = 0x0a, DATATYPE_TAG = 0x12, SHAPE_TAG = 0x1a }; /* of an output */

/* Writing. `failed` once something has no plain encoding, or no room. */
struct writer {
    unsigned char *at, *end;
    int failed;
};

static void put(struct writer *to, const void *bytes, size_t size)
{
    if (to->failed || size > (size_t)(to->end - to->at)) {
        to->failed = 1;
        return;
    }
    if (size)
        memcpy(to->at, bytes, size);
    to->at += size;
}

static void put_byte(struct writer *to, int value)
{
    unsigned char byte = (unsigned char)value;
    put(to, &byte, 1);
}

static void put_varint(struct writer *to, uint64_t value)
{
    for (; value > 0x7f; value >>= 7)
        put_byte(to, (int)(value & 0x7f) | 0x80);
    put_byte(to, (int)value);
}

static void put_delimited(struct writer *to, int tag, const void *bytes, size_t size)
{
    put_byte(to, tag);
    put_varint(to, size);
    put(to, bytes, size);
}

/* Write a text; no field for an empty one. */
static void put_text(struct writer *to, int tag, PyObject *text)
{
    Py_ssize_t size = 0;
    const char *bytes = text != NULL && PyUnicode_CheckExact(text) ? PyUnicode_AsUTF8AndSize(text, &size) : NULL;
    if (bytes == NULL) { /* no text, or one with a lone surrogate */
        PyErr_Clear();
        to->failed = 1;
    } else if (size) {
        put_delimited(to, tag, bytes, (size_t)size);
    }
}

static void put_shape(struct writer *to, PyObject *shape)
{
    unsigned char bytes[256];
    struct writer packed = {bytes, bytes + sizeof bytes, 0};
    if (shape == NULL || !PyTuple_CheckExact(shape)) {
        to->failed = 1;
        return;
    }
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(shape); i++) {
        long long dimension;
        if (!get_number(PyTuple_GET_ITEM(shape, i), &dimension) || dimension < 0)
            packed.failed = 1;
        put_varint(&packed, (uint64_t)dimension);
    }
    to->failed |= packed.failed;
    if (packed.at > bytes)
        put_delimited(to, SHAPE_TAG, bytes, (size_t)(packed.at - bytes));
}

static void put_output(const UnaryCalls *self, struct writer *to, PyObject *tensor)
{
    unsigned char bytes[1024];
    struct writer fields = {bytes, bytes + sizeof bytes, 0};
    put_text(&fields, NAME_TAG, get(self, TENSOR, tensor, T_NAME));
    put_text(&fields, DATATYPE_TAG, get(self, TENSOR, tensor, T_DATATYPE));
    put_shape(&fields, get(self, TENSOR, tensor, T_SHAPE));
    to->failed |= fields.failed;
    put_delimited(to, OUTPUT_TAG, bytes, (size_t)(fields.at - bytes));
}

static void put_data(struct writer *to, PyObject *data)
{
    Py_buffer view;
    int known = data != NULL && (PyBytes_CheckExact(data) || PyByteArray_CheckExact(data) || PyMemoryView_Check(data));
    if (!known || PyObject_GetBuffer(data, &view, PyBUF_CONTIG_RO) < 0) {
        PyErr_Clear();
        to->failed = 1;
        return;
    }
    if (view.itemsize != 1 || view.ndim != 1)
        to->failed = 1;
    put_delimited(to, RAW_TAG, view.buf, (size_t)view.len);
    PyBuffer_Release(&view);
}

/* Write parameters that are truth values or integers. */
static void put_parameters(struct writer *to, PyObject *parameters)
{
    PyObject *key, *value;
    for (Py_ssize_t at = 0; !to->failed && PyDict_Next(parameters, &at, &key, &value);) {
        unsigned char bytes[256], number[16];
        struct writer entry = {bytes, bytes + sizeof bytes, 0}, of_value = {number, number + sizeof number, 0};
        int overflow = !PyBool_Check(value) && !PyLong_CheckExact(value);
        put_text(&entry, KEY_TAG, key);
        put_byte(&of_value, PyBool_Check(value) ? BOOL_TAG : INT64_TAG);
        put_varint(&of_value, overflow ? 0 : (uint64_t)PyLong_AsLongLongAndOverflow(value, &overflow));
        put_delimited(&entry, VALUE_TAG, number, (size_t)(of_value.at - number));
        put_delimited(to, PARAMETER_TAG, bytes, (size_t)(entry.at - bytes));
        to->failed |= entry.failed || overflow;
    }
}

static void put_message(const UnaryCalls *self, struct writer *to, PyObject *request, PyObject *response)
{
    PyObject *outputs = get(self, ANSWER, response, A_OUTPUTS);
    if (outputs == NULL || !PyTuple_CheckExact(outputs) || PyTuple_GET_SIZE(outputs) > MAX_OUTPUTS) {
        to->failed = 1;
        return;
    }
    put_text(to, MODEL_NAME_TAG, get(self, ANSWER, response, A_MODEL_NAME));
    put_text(to, MODEL_VERSION_TAG, get(self, ANSWER, response, A_MODEL_VERSION));
    put_text(to, ID_TAG, get(self, REQUEST, request, Q_ID));
    put_parameters(to, get(self, ANSWER, response, A_PARAMETERS));
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(outputs) && !to->failed; i++) {
        if (is(self, TENSOR, PyTuple_GET_ITEM(outputs, i)))
            put_output(self, to, PyTuple_GET_ITEM(outputs, i));
        else
            to->failed = 1;
    }
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(outputs) && !to->failed; i++)
        put_data(to, get(self, TENSOR, PyTuple_GET_ITEM(outputs, i), T_DATA));
}

static void put_big_endian(unsigned char *place, uint32_t value)
{
    for (int i = 0; i < 4; i++)
        place[i] = (unsigned char)(value >> (24 - 8 * i));
}

static void put_head(struct writer *to, size_t length, int kind, int flags, long long stream)
{
    unsigned char head[HEAD_SIZE];
    put_big_endian(head, (uint32_t)length << 8 | (uint32_t)kind);
    head[4] = (unsigned char)flags;
    put_big_endian(head + 5, (uint32_t)stream);
    put(to, head, sizeof head);
}

static void put_block(struct writer *to, PyObject *block, int flags, long long stream)
{
    put_head(to, (size_t)PyBytes_GET_SIZE(block), HEADERS_FRAME, flags, stream);
    put(to, PyBytes_AS_STRING(block), (size_t)PyBytes_GET_SIZE(block));
}

/* Write all frames of a call; return the length of the DATA. */
static size_t put_frames(const UnaryCalls *self, struct writer *to, long long stream, PyObject *request, PyObject *response)
{
    put_block(to, self->headers, END_HEADERS, stream);
    unsigned char *head = to->at, *data = head + HEAD_SIZE;
    to->at = data + PREFIX_SIZE; /* both heads are written when the length is known */
    put_message(self, to, request, response);
    size_t length = (size_t)(to->at - data);
    struct writer before = {head, data, 0};
    put_head(&before, length, DATA, 0, stream);
    data[0] = 0; /* not compressed */
    put_big_endian(data + 1, (uint32_t)(length - PREFIX_SIZE));
    put_block(to, self->trailers, END_HEADERS | END_STREAM, stream);
    return length;
}

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

/* Whether DATA of a length may be sent now, in one frame. */
static int may_send(const UnaryCalls *self, PyObject *stream, PyObject *output, long long length, long long *window)
{
    long long of_stream, frame_size;
    return length - PREFIX_SIZE <= self->max_message && get_number(get(self, STREAM, stream, S_WINDOW), &of_stream) &&
           get_number(get(self, OUTPUT, output, O_WINDOW), window) &&
           get_number(get(self, OUTPUT, output, O_FRAME_SIZE), &frame_size) && length <= of_stream && length <= *window &&
           length <= frame_size;
}

/* Release what a call holds, as `GrpcCall._close`. */
static int close_call(UnaryCalls *self, PyObject *call)
{
    long long calls, buffered, of_call;
    PyObject *timer = get(self, CALL, call, U_TIMER);
    set(self, CALL, call, U_ON_CANCEL, Py_NewRef(self->on_cancel)); /* breaks a reference cycle */
    set(self, CALL, call, U_OVER, Py_NewRef(Py_True));
    if (!get_number(get(self, CALL, call, U_BUFFERED), &of_call) || get_count(self, self->calls, &calls) < 0 ||
        get_count(self, self->buffered, &buffered) < 0 || set_count(self, self->calls, calls - 1) < 0 ||
        set_count(self, self->buffered, buffered - of_call) < 0)
        return -1;
    set(self, CALL, call, U_BUFFERED, Py_NewRef(self->zero));
    PyObject *cancelled = timer == Py_None ? Py_NewRef(timer) : PyObject_CallMethodNoArgs(timer, self->cancel);
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
    PyObject *flush = PyObject_GetAttr(output, self->flush), *loop = get(self, OUTPUT, output, O_LOOP);
    PyObject *scheduled = flush == NULL ? NULL : PyObject_CallMethodOneArg(loop, self->call_soon, flush);
    Py_XDECREF(flush);
    Py_XDECREF(scheduled);
    if (scheduled != NULL)
        set(self, OUTPUT, output, O_CORKED, Py_NewRef(Py_True));
    return scheduled == NULL ? -1 : 0;
}

/* Send the frames of a call, which ends it. */
static int send(UnaryCalls *self, PyObject *call, PyObject *stream, PyObject *output, PyObject *frames, long long window)
{
    PyObject *keepalive = get(self, OUTPUT, output, O_KEEPALIVE);
    long long count;
    if (close_call(self, call) < 0 || PyList_Append(get(self, OUTPUT, output, O_FRAMES), frames) < 0 ||
        set_number(self, OUTPUT, output, O_WINDOW, window) < 0)
        return -1;
    if (get_number(get(self, KEEPALIVE, keepalive, K_SENT), &count) &&
        set_number(self, KEEPALIVE, keepalive, K_SENT, count + 1) < 0)
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
    unsigned char bytes[LONGEST];
    struct writer to = {bytes, bytes + sizeof bytes, 0};
    long long number, window;
    if (!is(self, CALL, call) || !is(self, REQUEST, request) || !is(self, ANSWER, response))
        return 0;
    PyObject *stream = get(self, CALL, call, U_STREAM);
    if (!is_open(self, call, stream) || !is_plain(self, request, response) ||
        !get_number(get(self, STREAM, stream, S_ID), &number))
        return 0;
    long long length = (long long)put_frames(self, &to, number, request, response);
    PyObject *output = get(self, STREAM, stream, S_OUTPUT);
    if (to.failed || !may_send(self, stream, output, length, &window))
        return 0;
    PyObject *frames = PyBytes_FromStringAndSize((const char *)bytes, to.at - bytes);
    if (frames == NULL)
        return -1;
    Py_INCREF(stream);
    Py_INCREF(output);
    int sent = send(self, call, stream, output, frames, window - length);
    Py_DECREF(output);
    Py_DECREF(stream);
    Py_DECREF(frames);
    return sent < 0 ? -1 : 1;
}
