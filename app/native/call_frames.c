/* Writing the message of a response, as `app/protocol/grpc/responses.py` writes it, within its frames. Long tensors are
not copied. */
#include "call_frames.h"

#include <string.h>

enum { HEAD_SIZE = 9, VIEWED_FROM = 8192 };
enum { DATA = 0, HEADERS_FRAME = 1, END_STREAM = 1, END_HEADERS = 4 };
enum { MODEL_NAME_TAG = 0x0a, MODEL_VERSION_TAG = 0x12, ID_TAG = 0x1a, PARAMETER_TAG = 0x22, OUTPUT_TAG = 0x2a, RAW_TAG = 0x32 };
enum { KEY_TAG = 0x0a, VALUE_TAG = 0x12, BOOL_TAG = 0x08, INT64_TAG = 0x10 }; /* of a parameter */
enum { NAME_TAG = 0x0a, DATATYPE_TAG = 0x12, SHAPE_TAG = 0x1a }; /* of an output */

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

static void put_data(struct message *message, PyObject *data)
{
    Py_buffer view;
    struct writer *to = &message->to;
    int known = data != NULL && (PyBytes_CheckExact(data) || PyByteArray_CheckExact(data) || PyMemoryView_Check(data));
    if (!known || PyObject_GetBuffer(data, &view, PyBUF_CONTIG_RO) < 0) {
        PyErr_Clear();
        to->failed = 1;
        return;
    }
    if (view.itemsize != 1 || view.ndim != 1)
        to->failed = 1;
    if (view.len < VIEWED_FROM) {
        put_delimited(to, RAW_TAG, view.buf, (size_t)view.len);
    } else {
        put_byte(to, RAW_TAG);
        put_varint(to, (uint64_t)view.len);
        message->parts[message->count++] = (struct apart){(size_t)(to->at - message->bytes), (size_t)view.len, data};
        message->apart += (size_t)view.len;
    }
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

void put_message(const UnaryCalls *self, struct message *message, PyObject *request, PyObject *response)
{
    struct writer *to = &message->to;
    *to = (struct writer){message->bytes + PREFIX_SIZE, message->bytes + sizeof message->bytes, 0};
    message->count = 0;
    message->apart = 0;
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
        put_data(message, get(self, TENSOR, PyTuple_GET_ITEM(outputs, i), T_DATA));
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

static void append(struct cut *cut, PyObject *buffer)
{
    if (buffer == NULL || PyList_Append(cut->buffers, buffer) < 0)
        cut->to.failed = 1;
    Py_XDECREF(buffer);
}

static void append_bytes(struct cut *cut)
{
    append(cut, PyBytes_FromStringAndSize((const char *)cut->bytes, cut->to.at - cut->bytes));
    cut->to.at = cut->bytes;
}

/* Begin a frame unless one has room; return as much of a size as it has room for. */
static size_t take_room(struct cut *cut, size_t size)
{
    if (cut->room == 0) {
        cut->room = cut->left < cut->frame_size ? cut->left : cut->frame_size;
        cut->left -= cut->room;
        put_head(&cut->to, cut->room, DATA, 0, cut->stream);
    }
    size = size < cut->room ? size : cut->room;
    cut->room -= size;
    return size;
}

static void cut_bytes(struct cut *cut, const unsigned char *bytes, size_t size)
{
    for (size_t taken; size && !cut->to.failed; bytes += taken, size -= taken) {
        taken = take_room(cut, size);
        put(&cut->to, bytes, taken);
    }
}

static void cut_data(struct cut *cut, const struct apart *part)
{
    PyObject *view = PyMemoryView_FromObject(part->data);
    cut->to.failed |= view == NULL;
    for (size_t at = 0, taken; at < part->size && !cut->to.failed; at += taken) {
        taken = take_room(cut, part->size - at);
        append_bytes(cut);
        append(cut, PySequence_GetSlice(view, (Py_ssize_t)at, (Py_ssize_t)(at + taken)));
    }
    Py_XDECREF(view);
}

PyObject *make_frames(const UnaryCalls *self, struct cut *cut, struct message *message)
{
    size_t done = 0;
    message->bytes[0] = 0; /* not compressed */
    put_big_endian(message->bytes + 1, (uint32_t)(cut->left - PREFIX_SIZE));
    cut->to = (struct writer){cut->bytes, cut->bytes + sizeof cut->bytes, 0};
    if ((cut->buffers = PyList_New(0)) == NULL)
        return NULL;
    put_block(&cut->to, self->headers, END_HEADERS, cut->stream);
    for (int i = 0; i < message->count; done = message->parts[i++].at) {
        cut_bytes(cut, message->bytes + done, message->parts[i].at - done);
        cut_data(cut, &message->parts[i]);
    }
    cut_bytes(cut, message->bytes + done, (size_t)(message->to.at - message->bytes) - done);
    put_block(&cut->to, self->trailers, END_HEADERS | END_STREAM, cut->stream);
    append_bytes(cut);
    if (!cut->to.failed)
        return cut->buffers;
    if (!PyErr_Occurred())
        PyErr_SetString(PyExc_ValueError, "the heads of a response have no room");
    Py_DECREF(cut->buffers);
    return NULL;
}
