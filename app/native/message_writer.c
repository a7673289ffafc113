#include "messages.h"

#include <stdint.h>
#include <string.h>

enum { LONGEST_META = 40 << 10 }; /* as much as a tensor in it may have (`IN_META`), and its description */

/* Writing msgpack, in its shortest form, into memory of a fixed size. */

/* `failed` once something has no plain encoding, or no room is left. */
struct writer {
    unsigned char *bytes;
    size_t size, room;
    int failed;
    PyObject *connection; /* that shares large tensors, or NULL */
    PyObject *places;     /* of those that it has shared, in tuples */
};

static unsigned char *reserve(struct writer *to, size_t nbytes)
{
    if (to->failed || nbytes > to->room - to->size) {
        to->failed = 1;
        return NULL;
    }
    unsigned char *place = to->bytes + to->size;
    to->size += nbytes;
    return place;
}

static void put_big_endian(struct writer *to, int code, uint64_t value, int width)
{
    unsigned char *place = reserve(to, 1 + (size_t)width);
    if (place == NULL)
        return;
    *place++ = (unsigned char)code;
    while (width-- > 0)
        *place++ = (unsigned char)(value >> 8 * width);
}

/* The size of a sequence: within the code itself below `few`, else in as few bytes as its kind has. */
static void put_size(struct writer *to, size_t size, int short_code, size_t few, int byte_code)
{
    if (size < few)
        put_big_endian(to, short_code | (int)size, 0, 0);
    else if (size <= UINT8_MAX)
        put_big_endian(to, byte_code, size, 1);
    else if (size <= UINT16_MAX)
        put_big_endian(to, byte_code + 1, size, 2);
    else
        put_big_endian(to, byte_code + 2, size, 4);
}

static void put_array(struct writer *to, Py_ssize_t size)
{
    if (size < 16)
        put_big_endian(to, 0x90 | (int)size, 0, 0);
    else if (size <= UINT16_MAX)
        put_big_endian(to, 0xdc, (uint64_t)size, 2);
    else
        put_big_endian(to, 0xdd, (uint64_t)size, 4);
}

static void put_bytes(struct writer *to, const void *bytes, size_t size)
{
    unsigned char *place = reserve(to, size);
    if (place != NULL && size)
        memcpy(place, bytes, size);
}

static void put_text(struct writer *to, PyObject *text)
{
    Py_ssize_t size;
    if (text == NULL || !PyUnicode_CheckExact(text)) {
        to->failed = 1;
        return;
    }
    const char *bytes = PyUnicode_AsUTF8AndSize(text, &size);
    if (bytes == NULL) { /* a lone surrogate */
        PyErr_Clear();
        to->failed = 1;
        return;
    }
    put_size(to, (size_t)size, 0xa0, 32, 0xd9);
    put_bytes(to, bytes, (size_t)size);
}

static void put_unsigned(struct writer *to, uint64_t value)
{
    if (value < 128)
        put_big_endian(to, (int)value, 0, 0);
    else if (value <= UINT8_MAX)
        put_big_endian(to, 0xcc, value, 1);
    else if (value <= UINT16_MAX)
        put_big_endian(to, 0xcd, value, 2);
    else if (value <= UINT32_MAX)
        put_big_endian(to, 0xce, value, 4);
    else
        put_big_endian(to, 0xcf, value, 8);
}

static void put_number(struct writer *to, PyObject *number)
{
    int overflow = 1;
    long long value = -1;
    if (number != NULL && PyLong_CheckExact(number))
        value = PyLong_AsLongLongAndOverflow(number, &overflow);
    if (overflow || value < 0)
        to->failed = 1;
    else
        put_unsigned(to, (uint64_t)value);
}

/* Writing messages. */

/* Write the number of a tuple's items and return it; 0 for anything else and for more than there may be. */
static Py_ssize_t put_count(const Messages *self, struct writer *to, PyObject *tuple)
{
    int fits = tuple != NULL && PyTuple_CheckExact(tuple) && PyTuple_GET_SIZE(tuple) <= self->max_tensors;
    to->failed |= !fits;
    put_array(to, fits ? PyTuple_GET_SIZE(tuple) : 0);
    return fits ? PyTuple_GET_SIZE(tuple) : 0;
}

static void put_numbers(const Messages *self, struct writer *to, PyObject *numbers)
{
    Py_ssize_t count = put_count(self, to, numbers);
    for (Py_ssize_t i = 0; i < count; i++)
        put_number(to, PyTuple_GET_ITEM(numbers, i));
}

/* Write the place of a tensor in client memory. */
static void put_place(const Messages *self, struct writer *to, PyObject *place)
{
    PyObject *encoded = PyObject_CallOneArg(self->encode_place, place);
    if (encoded != NULL && PyBytes_CheckExact(encoded)) {
        put_size(to, (size_t)PyBytes_GET_SIZE(encoded), 0, 0, 0xc7);
        put_big_endian(to, (int)self->place_code, 0, 0);
        put_bytes(to, PyBytes_AS_STRING(encoded), (size_t)PyBytes_GET_SIZE(encoded));
    } else {
        PyErr_Clear();
        to->failed = 1;
    }
    Py_XDECREF(encoded);
}

/* Have a large tensor shared with the peer, and write where it is. */
static void put_shared(const Messages *self, struct writer *to, PyObject *data, Py_ssize_t nbytes)
{
    PyObject *place = NULL;
    if (!to->failed && to->connection != NULL && (to->places != NULL || (to->places = PyList_New(0)) != NULL))
        place = PyObject_CallMethod(to->connection, "share", "On", data, nbytes);
    if (place != NULL && place != Py_None && PyList_Append(to->places, place) == 0)
        put_numbers(self, to, place);
    else
        to->failed = 1;
    Py_XDECREF(place);
    PyErr_Clear();
}

static void put_data(const Messages *self, struct writer *to, PyObject *data)
{
    Py_buffer view;
    if (data != NULL && Py_TYPE(data) == self->types[PLACE]) {
        put_place(self, to, data);
        return;
    }
    if (data == NULL || !(PyBytes_CheckExact(data) || PyByteArray_CheckExact(data) || PyMemoryView_Check(data)) ||
        PyObject_GetBuffer(data, &view, PyBUF_SIMPLE) < 0) {
        PyErr_Clear();
        to->failed = 1;
        return;
    }
    if (view.len > self->in_meta) {
        put_shared(self, to, data, view.len);
    } else {
        put_size(to, (size_t)view.len, 0, 0, 0xc4);
        put_bytes(to, view.buf, (size_t)view.len);
    }
    PyBuffer_Release(&view);
}

static void put_tensor(const Messages *self, struct writer *to, PyObject *tensor)
{
    if (Py_TYPE(tensor) != self->types[TENSOR]) {
        to->failed = 1;
        return;
    }
    put_array(to, 4);
    put_text(to, field(self, TENSOR, tensor, T_NAME));
    put_text(to, field(self, TENSOR, tensor, T_DATATYPE));
    put_numbers(self, to, field(self, TENSOR, tensor, T_SHAPE));
    put_data(self, to, field(self, TENSOR, tensor, T_DATA));
}

static void put_tensors(const Messages *self, struct writer *to, PyObject *tensors)
{
    Py_ssize_t count = put_count(self, to, tensors);
    for (Py_ssize_t i = 0; i < count && !to->failed; i++)
        put_tensor(self, to, PyTuple_GET_ITEM(tensors, i));
}

static void put_outputs(const Messages *self, struct writer *to, PyObject *outputs)
{
    Py_ssize_t count = put_count(self, to, outputs);
    for (Py_ssize_t i = 0; i < count && !to->failed; i++) {
        PyObject *output = PyTuple_GET_ITEM(outputs, i);
        PyObject *place = Py_TYPE(output) == self->types[OUTPUT] ? field(self, OUTPUT, output, W_REGION) : NULL;
        to->failed |= place == NULL;
        if (to->failed)
            break;
        if (place != Py_None)
            put_array(to, 2);
        put_text(to, field(self, OUTPUT, output, W_NAME));
        if (place != Py_None)
            put_place(self, to, place);
    }
}

static int are_unset(const struct unset *known, PyObject *object)
{
    for (Py_ssize_t i = 0; i < known->count; i++) {
        PyObject *value = *(PyObject **)((char *)object + known->offsets[i]);
        int set = value == NULL ? 1 : PyObject_IsTrue(value);
        if (set < 0)
            PyErr_Clear();
        if (set)
            return 0;
    }
    return 1;
}

static void put_little_endian(unsigned char *place, uint64_t value, int width)
{
    for (int i = 0; i < width; i++)
        place[i] = (unsigned char)(value >> 8 * i);
}

static PyObject *finished(const Messages *self, struct writer *to, int kind, int flags, uint64_t stream, uint64_t left)
{
    PyObject *places = to->places;
    if (to->failed || (Py_ssize_t)to->size - HEADER_SIZE > self->max_meta) {
        Py_XDECREF(places == NULL ? NULL : PyObject_CallMethod(to->connection, "unshare", "N", places));
        return NULL;
    }
    Py_XDECREF(places);
    memset(to->bytes, 0, HEADER_SIZE);
    to->bytes[0] = (unsigned char)kind;
    to->bytes[1] = (unsigned char)flags;
    put_little_endian(to->bytes + 4, to->size - HEADER_SIZE, 4);
    put_little_endian(to->bytes + 16, stream, 8);
    put_little_endian(to->bytes + 24, left, 8);
    return PyBytes_FromStringAndSize((const char *)to->bytes, (Py_ssize_t)to->size);
}

static int read_number(PyObject *object, uint64_t *number)
{
    *number = PyLong_AsUnsignedLongLong(object);
    if (*number != (uint64_t)-1 || !PyErr_Occurred())
        return 1;
    PyErr_Clear();
    return 0;
}

/* Write what is behind the id, of a request with nothing set there but these two. */
static void put_rest(const Messages *self, struct writer *to, int regions, PyObject *chain)
{
    put_bytes(to, DEFAULTS, sizeof DEFAULTS - 1);
    put_big_endian(to, regions ? 0xc3 : 0xc2, 0, 0);
    Py_ssize_t count = put_count(self, to, chain);
    for (Py_ssize_t i = 0; i < count; i++)
        put_text(to, PyTuple_GET_ITEM(chain, i));
    put_big_endian(to, 0xc2, 0, 0); /* not mirrored */
}

PyObject *request_frame(const Messages *self, PyObject *connection, PyObject *request, uint64_t stream, uint64_t left)
{
    unsigned char bytes[HEADER_SIZE + LONGEST_META];
    struct writer to = {bytes, HEADER_SIZE, sizeof bytes, 0, connection, NULL};
    if (Py_TYPE(request) != self->types[REQUEST] || !are_unset(&self->request, request))
        return NULL;
    PyObject *chain = field(self, REQUEST, request, Q_CHAIN);
    int regions = field(self, REQUEST, request, Q_REGIONS) == Py_True;
    int more = regions || chain == NULL || !PyTuple_CheckExact(chain) || PyTuple_GET_SIZE(chain) > 0;
    put_array(&to, more ? ALL_FIELDS : PLAIN_FIELDS);
    put_text(&to, field(self, REQUEST, request, Q_MODEL_NAME));
    put_text(&to, field(self, REQUEST, request, Q_MODEL_VERSION));
    put_tensors(self, &to, field(self, REQUEST, request, Q_INPUTS));
    put_outputs(self, &to, field(self, REQUEST, request, Q_OUTPUTS));
    put_text(&to, field(self, REQUEST, request, Q_ID));
    if (more)
        put_rest(self, &to, regions, chain);
    return finished(self, &to, INFER, 0, stream, left);
}

/* Write a response of its name, version, outputs, id and parameters. */
static PyObject *write_values(const Messages *self, PyObject *connection, PyObject *const *values, int flags, uint64_t stream)
{
    unsigned char bytes[HEADER_SIZE + LONGEST_META];
    struct writer to = {bytes, HEADER_SIZE, sizeof bytes, 0, connection, NULL};
    PyObject *parameters = values[4];
    if (parameters == NULL || !PyDict_CheckExact(parameters) || PyDict_GET_SIZE(parameters) != 0)
        return NULL;
    put_array(&to, 4);
    put_text(&to, values[0]);
    put_text(&to, values[1]);
    put_tensors(self, &to, values[2]);
    put_text(&to, values[3]);
    return finished(self, &to, RESPONSE, flags, stream, 0);
}

PyObject *frame_of(const Messages *self, PyObject *connection, PyObject *const *values, uint64_t stream)
{
    return write_values(self, connection, values, FINAL, stream);
}

PyObject *response_frame(const Messages *self, PyObject *connection, PyObject *response, uint64_t stream)
{
    PyObject *values[5];
    if (Py_TYPE(response) != self->types[ANSWER] || !are_unset(&self->response, response))
        return NULL;
    for (int i = 0; i < 5; i++)
        values[i] = field(self, ANSWER, response, i);
    PyObject *final = field(self, ANSWER, response, A_FINAL);
    if (final != Py_True && final != Py_False)
        return NULL;
    return write_values(self, connection, values, final == Py_True ? FINAL : 0, stream);
}

PyObject *write_request(Messages *self, PyObject *const *arguments, Py_ssize_t count)
{
    uint64_t stream, left;
    if (count != 3) {
        PyErr_SetString(PyExc_TypeError, "request, stream, microseconds left");
        return NULL;
    }
    if (!read_number(arguments[1], &stream) || !read_number(arguments[2], &left))
        Py_RETURN_NONE;
    return none_if_left(request_frame(self, NULL, arguments[0], stream, left));
}

PyObject *write_response(Messages *self, PyObject *const *arguments, Py_ssize_t count)
{
    uint64_t stream;
    if (count != 2) {
        PyErr_SetString(PyExc_TypeError, "response, stream");
        return NULL;
    }
    if (!read_number(arguments[1], &stream))
        Py_RETURN_NONE;
    return none_if_left(response_frame(self, NULL, arguments[0], stream));
}
