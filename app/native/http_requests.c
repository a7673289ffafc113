/* The request that bytes are, by a pattern. */
#include "http_patterns.h"

#include <string.h>

/* Bytes of a tensor that are copied out of the request, which larger ones keep. */
enum { SMALL_TENSOR = 4 << 10 };

/* Return the end of an id: of printable ASCII, nothing escaped; NULL for another. */
static const char *end_of_id(const char *at, const char *end)
{
    const char *start = at;
    while (at < end && *at >= ' ' && *at <= '~' && *at != '"' && *at != '\\')
        at++;
    return at > start && at < end && *at == '"' ? at : NULL;
}

static const char *end_of_string(const char *at, const char *end)
{
    for (; at < end; at++) {
        if (*at == '"')
            return at + 1;
        if (*at == '\\')
            at++;
    }
    return NULL;
}

/* Return the end of an array, if it is one; NULL if it cannot be. */
static const char *end_of_array(const char *at, const char *end)
{
    int depth = 0;
    while (at != NULL && at < end) {
        char next = *at++;
        if (next == '"')
            at = end_of_string(at, end);
        else if (next == '[')
            depth++;
        else if (next == ']')
            depth--;
        if (depth == 0 || next == '{')
            return next == ']' ? at : NULL;
    }
    return NULL;
}

/* Find what is in the holes of a request; return whether all around them is as in the sample. */
static int find_spans(const Pattern *self, const char *data, struct span *spans)
{
    const char *sample = PyBytes_AS_STRING(self->sample), *at = data;
    const char *end = data + PyBytes_GET_SIZE(self->sample); /* of the JSON: the head, with its lengths, is the same */
    Py_ssize_t known = 0;
    for (Py_ssize_t i = 0; i < self->holes; i++) {
        const struct hole *hole = &self->hole[i];
        Py_ssize_t size = hole->start - known;
        if (size > end - at || memcmp(at, sample + known, (size_t)size) != 0)
            return 0;
        at += size;
        spans[i].start = at;
        at = hole->input < 0 ? end_of_id(at, end) : end_of_array(at, end);
        if (at == NULL)
            return 0;
        spans[i].end = at;
        known = hole->end;
    }
    Py_ssize_t size = PyBytes_GET_SIZE(self->sample) - known;
    return size == end - at && memcmp(at, sample + known, (size_t)size) == 0;
}

static PyObject *bytes_of(struct span span)
{
    return PyBytes_FromStringAndSize(span.start, span.end - span.start);
}

/* Return the data of a tensor that was given in the JSON. */
static PyObject *read_tensor(const struct input *input, struct span span)
{
    PyObject *text = bytes_of(span);
    PyObject *found = text == NULL ? NULL : PyObject_CallOneArg(input->source, text);
    Py_XDECREF(text);
    if (found != NULL && !PyBytes_CheckExact(found)) {
        PyErr_SetString(PyExc_TypeError, "a tensor's data is bytes");
        Py_CLEAR(found);
    }
    return found;
}

/* Return the data of a tensor that is behind the JSON. */
static PyObject *slice(PyObject *data, Py_ssize_t start, Py_ssize_t end)
{
    if (end - start <= SMALL_TENSOR)
        return PyBytes_FromStringAndSize(PyBytes_AS_STRING(data) + start, end - start);
    PyObject *view = PyMemoryView_FromObject(data);
    PyObject *found = view == NULL ? NULL : PySequence_GetSlice(view, start, end);
    Py_XDECREF(view);
    return found;
}

/* Fill in the data of each tensor, and the id; return whether there is everything. The caller releases it. */
static int read_values(const Pattern *self, PyObject *data, const struct span *spans, PyObject **values, PyObject **id)
{
    for (Py_ssize_t i = 0; i < self->holes; i++) {
        Py_ssize_t input = self->hole[i].input;
        PyObject **value = input < 0 ? id : &values[input];
        *value = input < 0 ? PyUnicode_DecodeASCII(spans[i].start, spans[i].end - spans[i].start, NULL)
                           : read_tensor(&self->input[input], spans[i]);
        if (*value == NULL)
            return 0;
    }
    Py_ssize_t json_end = PyBytes_GET_SIZE(self->sample);
    for (Py_ssize_t i = 0; i < self->inputs; i++) {
        const struct input *input = &self->input[i];
        if (input->source == Py_None)
            values[i] = slice(data, json_end + input->start, json_end + input->end);
        else if (values[i] == NULL)
            values[i] = Py_NewRef(input->source);
        if (values[i] == NULL)
            return 0;
    }
    if (*id == NULL)
        *id = Py_NewRef(PyTuple_GET_ITEM(self->fields, 3));
    return 1;
}

/* Return a request with these values. */
static PyObject *make_request(const Patterns *patterns, const Pattern *self, PyObject **values, PyObject *id)
{
    PyObject *inputs = PyTuple_New(self->inputs);
    for (Py_ssize_t i = 0; inputs != NULL && i < self->inputs; i++) {
        const struct input *input = &self->input[i];
        PyObject *fields[T_SLOTS] = {input->name, input->datatype, input->shape, values[i]};
        PyObject *tensor = PyObject_Vectorcall((PyObject *)patterns->tensor, fields, T_SLOTS, NULL);
        if (tensor == NULL)
            Py_CLEAR(inputs);
        else
            PyTuple_SET_ITEM(inputs, i, tensor);
    }
    if (inputs == NULL)
        return NULL;
    PyObject **given = &PyTuple_GET_ITEM(self->fields, 0);
    PyObject *fields[] = {given[0], given[1], inputs, given[2], id, given[4], given[5]};
    PyObject *request = PyObject_Vectorcall((PyObject *)patterns->request, fields, 6, patterns->names);
    Py_DECREF(inputs);
    return request;
}

Matched *match_pattern(Patterns *patterns, Pattern *pattern, PyObject *data, PyObject *connection)
{
    struct span spans[MAX_HOLES];
    PyObject *values[MAX_INPUTS] = {NULL}, *id = NULL, *request = NULL;
    Matched *matched = NULL;
    if (!find_spans(pattern, PyBytes_AS_STRING(data), spans))
        return NULL;
    if (read_values(pattern, data, spans, values, &id))
        request = make_request(patterns, pattern, values, id);
    if (request != NULL)
        matched = make_matched(patterns, pattern, connection, request, id);
    for (Py_ssize_t i = 0; i < MAX_INPUTS; i++)
        Py_XDECREF(values[i]);
    Py_XDECREF(id);
    Py_XDECREF(request);
    return matched;
}
