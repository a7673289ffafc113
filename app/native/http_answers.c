/* Responses like one that Python has written, but for what their outputs hold. */
#include "http_patterns.h"

#include <string.h>

enum { MAX_BODY = 16 << 10 }; /* bytes of a response that is joined */
enum { MAX_PIECES = 2 * MAX_OUTPUTS + 3, DIGITS = 20 };

static inline PyObject *field(PyObject *object, Py_ssize_t offset)
{
    return *(PyObject **)((char *)object + offset);
}

static int equal(PyObject *one, PyObject *other)
{
    int same = one == other || (one != NULL ? PyObject_RichCompareBool(one, other, Py_EQ) : 0);
    if (same < 0)
        PyErr_Clear();
    return same > 0;
}

/* Return the size of a tensor's data in bytes, if it is a buffer of them; else -1. */
static Py_ssize_t size_of(PyObject *data)
{
    if (data != NULL && (PyBytes_CheckExact(data) || PyByteArray_CheckExact(data)))
        return Py_SIZE(data);
    if (data == NULL || !PyMemoryView_Check(data))
        return -1;
    const Py_buffer *view = PyMemoryView_GET_BUFFER(data);
    return view->itemsize == 1 && view->ndim == 1 && PyBuffer_IsContiguous(view, 'C') ? view->len : -1;
}

/* Whether an output is as (name, datatype, shape, bytes) says; its size is -1 if its data is in the JSON. */
static int is_output(const Patterns *patterns, PyObject *tensor, PyObject *expected)
{
    Py_ssize_t nbytes = PyLong_AsSsize_t(PyTuple_GET_ITEM(expected, 3));
    return Py_IS_TYPE(tensor, patterns->tensor) &&
           equal(field(tensor, patterns->of_tensor[T_NAME]), PyTuple_GET_ITEM(expected, 0)) &&
           equal(field(tensor, patterns->of_tensor[T_DATATYPE]), PyTuple_GET_ITEM(expected, 1)) &&
           equal(field(tensor, patterns->of_tensor[T_SHAPE]), PyTuple_GET_ITEM(expected, 2)) &&
           (nbytes < 0 || nbytes == size_of(field(tensor, patterns->of_tensor[T_DATA])));
}

/* Whether a response has all that an answer, as `add_answer` checks it, says of one. */
static int is_response(const Matched *self, PyObject *response, PyObject *answer)
{
    const Patterns *patterns = self->patterns;
    PyObject *outputs = field(response, patterns->of_response[A_OUTPUTS]), *expected = PyTuple_GET_ITEM(answer, 2);
    Py_ssize_t count = PyTuple_GET_SIZE(expected);
    if (outputs == NULL || !PyTuple_CheckExact(outputs) || PyTuple_GET_SIZE(outputs) != count ||
        !equal(field(response, patterns->of_response[A_MODEL_NAME]), PyTuple_GET_ITEM(answer, 0)) ||
        !equal(field(response, patterns->of_response[A_MODEL_VERSION]), PyTuple_GET_ITEM(answer, 1)))
        return 0;
    for (Py_ssize_t i = 0; i < count; i++) {
        if (!is_output(patterns, PyTuple_GET_ITEM(outputs, i), PyTuple_GET_ITEM(expected, i)))
            return 0;
    }
    return 1;
}

/* Whether a response is the only one of its request, succeeded, and has no parameters and no id of its own. */
static int is_plain(const Matched *self, PyObject *response)
{
    const Patterns *patterns = self->patterns;
    if (!Py_IS_TYPE(response, patterns->response))
        return 0;
    PyObject *parameters = field(response, patterns->of_response[A_PARAMETERS]);
    PyObject *id = field(response, patterns->of_response[A_ID]);
    return field(response, patterns->of_response[A_FINAL]) == Py_True &&
           field(response, patterns->of_response[A_FAILURE]) == Py_None && parameters != NULL &&
           PyDict_CheckExact(parameters) && PyDict_GET_SIZE(parameters) == 0 && id != NULL &&
           PyUnicode_CheckExact(id) && (PyUnicode_GET_LENGTH(id) == 0 || equal(id, self->id));
}

/* A response on its way: the parts of its JSON, and its binary tensors. */
struct body {
    Py_ssize_t pieces, binaries, json_size, size;
    struct span piece[MAX_PIECES];
    PyObject *made[MAX_PIECES];
    Py_buffer binary[MAX_OUTPUTS];
};

/* Fill in a piece of the JSON: bytes, or the number of a tensor that is given there, or -1 for the id. */
static int add_piece(const Matched *self, struct body *body, PyObject *piece, PyObject *outputs)
{
    Py_ssize_t size, place = body->pieces++;
    if (PyBytes_CheckExact(piece)) {
        body->made[place] = Py_NewRef(piece);
    } else if (PyLong_AsSsize_t(piece) < 0) {
        const char *text = PyUnicode_AsUTF8AndSize(self->id, &size);
        body->made[place] = text == NULL ? NULL : PyBytes_FromStringAndSize(text, size);
    } else {
        PyObject *tensor = PyTuple_GET_ITEM(outputs, PyLong_AsSsize_t(piece));
        body->made[place] = PyObject_CallOneArg(self->patterns->encode_data, tensor);
    }
    PyObject *made = body->made[place];
    if (made == NULL || !PyBytes_CheckExact(made))
        return 0;
    body->piece[place] = (struct span){PyBytes_AS_STRING(made), PyBytes_AS_STRING(made) + PyBytes_GET_SIZE(made)};
    body->json_size += PyBytes_GET_SIZE(made);
    return 1;
}

static int fill_body(const Matched *self, struct body *body, PyObject *answer, PyObject *outputs)
{
    PyObject *pieces = PyTuple_GET_ITEM(answer, 4), *expected = PyTuple_GET_ITEM(answer, 2);
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(pieces); i++) {
        if (!add_piece(self, body, PyTuple_GET_ITEM(pieces, i), outputs))
            return 0;
    }
    body->size = body->json_size;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(expected); i++) {
        if (PyLong_AsSsize_t(PyTuple_GET_ITEM(PyTuple_GET_ITEM(expected, i), 3)) < 0)
            continue;
        PyObject *data = field(PyTuple_GET_ITEM(outputs, i), self->patterns->of_tensor[T_DATA]);
        if (PyObject_GetBuffer(data, &body->binary[body->binaries], PyBUF_SIMPLE) < 0)
            return 0;
        body->size += body->binary[body->binaries++].len;
    }
    return body->size <= MAX_BODY;
}

static void release_body(struct body *body)
{
    for (Py_ssize_t i = 0; i < body->pieces; i++)
        Py_XDECREF(body->made[i]);
    for (Py_ssize_t i = 0; i < body->binaries; i++)
        PyBuffer_Release(&body->binary[i]);
}

static struct span decimal(Py_ssize_t number, char *digits)
{
    char *at = digits + DIGITS;
    do
        *--at = (char)('0' + number % 10);
    while (number /= 10);
    return (struct span){at, digits + DIGITS};
}

/* Return the parts of a response's head, at most 5: what Python wrote, around the lengths of the JSON, where it has
three parts, and of the body. */
static Py_ssize_t make_head(PyObject *heads, const struct body *body, struct span *parts, char (*digits)[DIGITS])
{
    Py_ssize_t count = PyTuple_GET_SIZE(heads), place = 0;
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *head = PyTuple_GET_ITEM(heads, i);
        parts[place++] = (struct span){PyBytes_AS_STRING(head), PyBytes_AS_STRING(head) + PyBytes_GET_SIZE(head)};
        if (i + 1 < count)
            parts[place++] = decimal(i + 2 < count ? body->json_size : body->size, digits[i]);
    }
    return place;
}

static char *put(char *to, const struct span *parts, Py_ssize_t count)
{
    for (Py_ssize_t i = 0; i < count; i++) {
        size_t size = (size_t)(parts[i].end - parts[i].start);
        memcpy(to, parts[i].start, size);
        to += size;
    }
    return to;
}

static PyObject *join(PyObject *heads, const struct body *body)
{
    char digits[2][DIGITS];
    struct span head[5];
    Py_ssize_t parts = make_head(heads, body, head, digits), size = body->size;
    for (Py_ssize_t i = 0; i < parts; i++)
        size += head[i].end - head[i].start;
    PyObject *joined = PyBytes_FromStringAndSize(NULL, size);
    if (joined == NULL)
        return NULL;
    char *to = put(PyBytes_AS_STRING(joined), head, parts);
    to = put(to, body->piece, body->pieces);
    for (Py_ssize_t i = 0; i < body->binaries; i++) {
        const Py_buffer *view = &body->binary[i];
        to = put(to, &(struct span){view->buf, (const char *)view->buf + view->len}, 1);
    }
    return joined;
}

PyObject *write_answer(const Matched *self, PyObject *response)
{
    if (!is_plain(self, response))
        return NULL;
    for (int i = 0; i < ANSWERS; i++) {
        PyObject *answer = self->pattern->answers[i];
        if (answer == NULL || !is_response(self, response, answer))
            continue;
        struct body body;
        body.pieces = body.binaries = body.json_size = 0;
        Py_INCREF(answer); /* what encodes a tensor could replace it */
        PyObject *outputs = Py_NewRef(field(response, self->patterns->of_response[A_OUTPUTS])), *joined = NULL;
        if (fill_body(self, &body, answer, outputs))
            joined = join(PyTuple_GET_ITEM(answer, 3), &body);
        release_body(&body);
        Py_DECREF(outputs);
        Py_DECREF(answer);
        return joined;
    }
    return NULL;
}

/* Whether all items of a tuple are bytes; in pieces also the number of an output, or -1. */
static int are_bytes(PyObject *tuple, Py_ssize_t outputs)
{
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(tuple); i++) {
        PyObject *item = PyTuple_GET_ITEM(tuple, i);
        if (PyBytes_CheckExact(item))
            continue;
        Py_ssize_t number = outputs >= 0 && PyLong_CheckExact(item) ? PyLong_AsSsize_t(item) : outputs;
        int fits = number >= -1 && number < outputs && !PyErr_Occurred();
        PyErr_Clear(); /* the caller has one for all */
        if (!fits)
            return 0;
    }
    return 1;
}

static int is_expected(PyObject *expected)
{
    PyObject *name, *datatype, *shape;
    Py_ssize_t nbytes;
    return PyTuple_Check(expected) &&
           PyArg_ParseTuple(expected, "UUO!n", &name, &datatype, &PyTuple_Type, &shape, &nbytes);
}

PyObject *add_answer(Matched *self, PyObject *answer)
{
    PyObject *name, *version, *outputs, *heads, *pieces;
    if (!PyTuple_Check(answer) || !PyArg_ParseTuple(answer, "UUO!O!O!:add_answer", &name, &version, &PyTuple_Type,
                                                    &outputs, &PyTuple_Type, &heads, &PyTuple_Type, &pieces)) {
        if (!PyErr_Occurred())
            PyErr_SetString(PyExc_TypeError, "no answer");
        return NULL;
    }
    Py_ssize_t count = PyTuple_GET_SIZE(outputs);
    if (count > MAX_OUTPUTS)
        Py_RETURN_FALSE;
    int fits = PyTuple_GET_SIZE(pieces) <= MAX_PIECES && PyTuple_GET_SIZE(heads) >= 2 &&
               PyTuple_GET_SIZE(heads) <= 3 && are_bytes(heads, -1) && are_bytes(pieces, count);
    for (Py_ssize_t i = 0; fits && i < count; i++)
        fits = is_expected(PyTuple_GET_ITEM(outputs, i));
    if (!fits) {
        if (!PyErr_Occurred())
            PyErr_SetString(PyExc_ValueError, "no answer");
        return NULL;
    }
    Pattern *pattern = self->pattern;
    Py_XSETREF(pattern->answers[pattern->next_answer], Py_NewRef(answer));
    pattern->next_answer = (pattern->next_answer + 1) % ANSWERS;
    Py_RETURN_TRUE;
}
