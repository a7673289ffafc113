#include "messages.h"

#include <stdint.h>
#include <string.h>

/* Reading. Each function returns a new reference or a size; NULL and -1 are without a Python error, but for memory,
or with one that `message_of` clears. */

struct reader {
    const unsigned char *at, *end;
    int shared; /* tensors may be in memory that the peer shares */
};

static int take(struct reader *from, size_t nbytes, const unsigned char **place)
{
    if (nbytes > (size_t)(from->end - from->at))
        return 0;
    *place = from->at;
    from->at += nbytes;
    return 1;
}

/* Read an integer of `width` bytes that is not negative. */
static Py_ssize_t get_big_endian(struct reader *from, int width)
{
    const unsigned char *place;
    uint64_t value = 0;
    if (!take(from, (size_t)width, &place))
        return -1;
    for (int i = 0; i < width; i++)
        value = value << 8 | place[i];
    return value <= PY_SSIZE_T_MAX ? (Py_ssize_t)value : -1;
}

static int get_code(struct reader *from)
{
    return from->at < from->end ? *from->at++ : -1;
}

/* Read the size of an array; every element has at least a byte. */
static Py_ssize_t get_array(const Messages *self, struct reader *from)
{
    int code = get_code(from);
    Py_ssize_t size = -1;
    if (code >= 0x90 && code < 0xa0)
        size = code & 15;
    else if (code == 0xdc)
        size = get_big_endian(from, 2);
    return size <= self->max_tensors && size <= from->end - from->at ? size : -1;
}

static PyObject *get_text(struct reader *from)
{
    const unsigned char *place;
    int code = get_code(from);
    Py_ssize_t size = -1;
    if (code >= 0xa0 && code < 0xc0)
        size = code & 31;
    else if (code >= 0xd9 && code <= 0xdb)
        size = get_big_endian(from, 1 << (code - 0xd9));
    if (size < 0 || !take(from, (size_t)size, &place))
        return NULL;
    return PyUnicode_DecodeUTF8((const char *)place, size, NULL);
}

/* Read the place of a tensor in client memory. */
static PyObject *get_place(const Messages *self, struct reader *from)
{
    const unsigned char *bytes;
    int code = get_code(from);
    Py_ssize_t size = code >= 0xc7 && code <= 0xc9 ? get_big_endian(from, 1 << (code - 0xc7)) : -1;
    if (size < 0 || get_code(from) != self->place_code || !take(from, (size_t)size, &bytes))
        return NULL;
    PyObject *encoded = PyBytes_FromStringAndSize((const char *)bytes, size);
    PyObject *place = encoded == NULL ? NULL : PyObject_CallOneArg(self->decode_place, encoded);
    Py_XDECREF(encoded);
    return place;
}

static PyObject *get_number(const Messages *Py_UNUSED(self), struct reader *from)
{
    int code = get_code(from);
    Py_ssize_t value = code;
    if (code >= 0xcc && code <= 0xcf)
        value = get_big_endian(from, 1 << (code - 0xcc));
    else if (code > 127)
        return NULL;
    return value < 0 ? NULL : PyLong_FromSsize_t(value);
}

typedef PyObject *(*get_item)(const Messages *, struct reader *);

static PyObject *get_tuple(const Messages *self, struct reader *from, get_item get)
{
    Py_ssize_t size = get_array(self, from);
    PyObject *tuple = size < 0 ? NULL : PyTuple_New(size);
    for (Py_ssize_t i = 0; tuple != NULL && i < size; i++) {
        PyObject *item = get(self, from);
        if (item == NULL)
            Py_CLEAR(tuple);
        else
            PyTuple_SET_ITEM(tuple, i, item);
    }
    return tuple;
}

static PyObject *get_data(const Messages *self, struct reader *from)
{
    const unsigned char *place;
    if (from->at < from->end && *from->at >= 0xc7)
        return get_place(self, from);
    if (from->shared && from->at < from->end && *from->at >= 0x92 && *from->at <= 0x94)
        return get_tuple(self, from, get_number);
    int code = get_code(from);
    Py_ssize_t size = code >= 0xc4 && code <= 0xc6 ? get_big_endian(from, 1 << (code - 0xc4)) : -1;
    if (size < 0 || !take(from, (size_t)size, &place))
        return NULL;
    return PyBytes_FromStringAndSize((const char *)place, size);
}

/* Make a struct of its first fields, which are released; NULL if one of them is. */
static PyObject *make(const Messages *self, enum struct_type type, PyObject **values, size_t count, PyObject *names)
{
    int complete = 1;
    size_t positional = count - (names == NULL ? 0 : (size_t)PyTuple_GET_SIZE(names));
    for (size_t i = 0; i < count; i++)
        complete &= values[i] != NULL;
    PyObject *made = complete ? PyObject_Vectorcall((PyObject *)self->types[type], values, positional, names) : NULL;
    for (size_t i = 0; i < count; i++)
        Py_XDECREF(values[i]);
    return made;
}

static PyObject *get_tensor(const Messages *self, struct reader *from)
{
    if (get_array(self, from) != 4)
        return NULL;
    PyObject *values[4] = {get_text(from)};
    if (values[0] != NULL && (values[1] = get_text(from)) != NULL &&
        (values[2] = get_tuple(self, from, get_number)) != NULL)
        values[3] = get_data(self, from);
    return make(self, TENSOR, values, 4, NULL);
}

static PyObject *get_output(const Messages *self, struct reader *from)
{
    int placed = from->at < from->end && *from->at == 0x92;
    from->at += placed;
    PyObject *values[4] = {get_text(from), Py_NewRef(Py_None), PyLong_FromLong(0)};
    values[3] = placed && values[0] != NULL ? get_place(self, from) : Py_NewRef(Py_None);
    return make(self, OUTPUT, values, 4, NULL);
}

static PyObject *get_name(const Messages *Py_UNUSED(self), struct reader *from)
{
    return get_text(from);
}

/* Read what is behind the id: regions and chain, with defaults around them. */
static int get_rest(const Messages *self, struct reader *from, PyObject **regions, PyObject **chain)
{
    const unsigned char *rest;
    size_t size = sizeof DEFAULTS - 1;
    int code = take(from, size, &rest) && memcmp(rest, DEFAULTS, size) == 0 ? get_code(from) : -1;
    *regions = code == 0xc2 || code == 0xc3 ? PyBool_FromLong(code == 0xc3) : NULL;
    *chain = *regions == NULL ? NULL : get_tuple(self, from, get_name);
    return *chain != NULL && get_code(from) == 0xc2;
}

static PyObject *get_request(const Messages *self, struct reader *from, PyObject *deadline)
{
    Py_ssize_t size = get_array(self, from);
    if (size != PLAIN_FIELDS && size != ALL_FIELDS)
        return NULL;
    PyObject *values[8] = {get_text(from)};
    if (values[0] != NULL && (values[1] = get_text(from)) != NULL &&
        (values[2] = get_tuple(self, from, get_tensor)) != NULL &&
        (values[3] = get_tuple(self, from, get_output)) != NULL)
        values[4] = get_text(from);
    if (size == PLAIN_FIELDS) {
        values[6] = Py_NewRef(Py_False);
        values[7] = PyTuple_New(0);
    }
    if (size == PLAIN_FIELDS || (values[4] != NULL && get_rest(self, from, &values[6], &values[7])))
        values[5] = Py_NewRef(deadline);
    return make(self, REQUEST, values, 8, self->names);
}

static PyObject *get_response(const Messages *self, struct reader *from, PyObject *final)
{
    if (get_array(self, from) != 4)
        return NULL;
    PyObject *values[6] = {get_text(from)};
    if (values[0] != NULL && (values[1] = get_text(from)) != NULL &&
        (values[2] = get_tuple(self, from, get_tensor)) != NULL)
        values[3] = get_text(from);
    values[4] = PyDict_New();
    values[5] = Py_NewRef(final);
    return make(self, ANSWER, values, 6, NULL);
}

typedef PyObject *(*get_message)(const Messages *, struct reader *, PyObject *);

static PyObject *message_of(const Messages *self, const void *meta, size_t nbytes, PyObject *argument, get_message get, int shared)
{
    struct reader from = {meta, (const unsigned char *)meta + nbytes, shared};
    PyObject *found = get(self, &from, argument);
    if (found != NULL && from.at == from.end)
        return found;
    Py_XDECREF(found);
    if (PyErr_Occurred() && !PyErr_ExceptionMatches(PyExc_MemoryError))
        PyErr_Clear();
    return NULL;
}

PyObject *request_of(const Messages *self, const void *meta, size_t nbytes, PyObject *deadline)
{
    return message_of(self, meta, nbytes, deadline, get_request, 1);
}

PyObject *response_of(const Messages *self, const void *meta, size_t nbytes, PyObject *final)
{
    return message_of(self, meta, nbytes, final, get_response, 1);
}

static PyObject *read_message(const Messages *self, PyObject *const *arguments, Py_ssize_t count, get_message get)
{
    Py_buffer meta;
    if (count != 2) {
        PyErr_SetString(PyExc_TypeError, "two arguments");
        return NULL;
    }
    if (PyObject_GetBuffer(arguments[0], &meta, PyBUF_SIMPLE) < 0)
        return NULL;
    PyObject *found = message_of(self, meta.buf, (size_t)meta.len, arguments[1], get, 0);
    PyBuffer_Release(&meta);
    return none_if_left(found);
}

PyObject *read_request(Messages *self, PyObject *const *arguments, Py_ssize_t count)
{
    return read_message(self, arguments, count, get_request);
}

PyObject *read_response(Messages *self, PyObject *const *arguments, Py_ssize_t count)
{
    return read_message(self, arguments, count, get_response);
}
