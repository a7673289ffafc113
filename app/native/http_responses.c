/* Responses over HTTP/1.1, written in full: `encode_infer` in `app/protocol/http/v2.py` writes all others. */
#include "http_requests.h"
#include "json.h"

#include <string.h>

enum { MAX_BODY = 16 << 10, MAX_OUTPUTS = 16 }; /* bytes that are joined, instead of sent in parts */

/* A response on its way: its JSON, and its binary tensors. */
struct response {
    Py_ssize_t json_size, binaries, size;
    Py_buffer binary[MAX_OUTPUTS];
    char json[MAX_BODY];
};

static int put(struct response *to, const char *bytes, Py_ssize_t size)
{
    if (size > MAX_BODY - to->json_size)
        return 0;
    memcpy(to->json + to->json_size, bytes, (size_t)size);
    to->json_size += size;
    return 1;
}

#define PUT(to, word) put(to, word, (Py_ssize_t)sizeof(word) - 1)

static int put_number(struct response *to, uint64_t number)
{
    char digits[MAX_DIGITS];
    return put(to, digits, write_digits(digits, number) - digits);
}

static int put_string(struct response *to, PyObject *string)
{
    Py_ssize_t size;
    const char *text = string != NULL && PyUnicode_Check(string) ? PyUnicode_AsUTF8AndSize(string, &size) : NULL;
    char *at = to->json + to->json_size, *limit = to->json + MAX_BODY;
    char *end = text == NULL ? NULL : write_quoted(at, limit, (const unsigned char *)text, (size_t)size);
    to->json_size += end == NULL ? 0 : end - at;
    return end != NULL;
}

static int put_shape(struct response *to, PyObject *shape)
{
    if (shape == NULL || !PyTuple_CheckExact(shape) || !PUT(to, "["))
        return 0;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(shape); i++) {
        unsigned long long size = PyLong_AsUnsignedLongLong(PyTuple_GET_ITEM(shape, i));
        if (PyErr_Occurred() || (i > 0 && !PUT(to, ",")) || !put_number(to, size))
            return 0;
    }
    return PUT(to, "]");
}

/* Write what a tensor's object begins with. */
static int put_tensor(const HttpRequests *self, struct response *to, PyObject *tensor)
{
    return PUT(to, "{\"name\":") && put_string(to, slot(tensor, self->of_tensor[T_NAME])) && PUT(to, ",\"datatype\":") &&
           put_string(to, slot(tensor, self->of_tensor[T_DATATYPE])) && PUT(to, ",\"shape\":") &&
           put_shape(to, slot(tensor, self->of_tensor[T_SHAPE]));
}

static int put_binary(const HttpRequests *self, struct response *to, PyObject *tensor)
{
    Py_buffer *view = &to->binary[to->binaries];
    if (PyObject_GetBuffer(slot(tensor, self->of_tensor[T_DATA]), view, PyBUF_SIMPLE) < 0)
        return 0;
    to->binaries++;
    to->size += view->len;
    return to->size <= MAX_BODY && PUT(to, ",\"parameters\":{\"binary_data_size\":") &&
           put_number(to, (uint64_t)view->len) && PUT(to, "}");
}

static int put_values(const HttpRequests *self, struct response *to, PyObject *tensor)
{
    PyObject *data = slot(tensor, self->of_tensor[T_DATA]);
    if (data == NULL || (size_t)PyObject_Size(data) > MAX_BODY / 4) /* most are longer than what is joined */
        return 0;
    PyObject *text = PyObject_CallOneArg(self->encode_data, tensor);
    int done = text != NULL && PyBytes_CheckExact(text) && PUT(to, ",\"data\":") &&
               put(to, PyBytes_AS_STRING(text), PyBytes_GET_SIZE(text));
    Py_XDECREF(text);
    return done;
}

/* Return what a request says of an output, borrowed; None for nothing, NULL where this cannot be told. */
static PyObject *find_wanted(const HttpRequests *self, PyObject *wanted, PyObject *name)
{
    for (Py_ssize_t i = PyTuple_GET_SIZE(wanted) - 1; i >= 0; i--) { /* of two the last one counts */
        PyObject *output = PyTuple_GET_ITEM(wanted, i);
        int same = PyObject_RichCompareBool(slot(output, self->of_output[W_NAME]), name, Py_EQ);
        if (same != 0)
            return same < 0 ? NULL : output;
    }
    return Py_None;
}

static int put_output(const Matched *self, struct response *to, PyObject *wanted, PyObject *tensor)
{
    const HttpRequests *requests = self->requests;
    PyObject *name = Py_IS_TYPE(tensor, requests->tensor) ? slot(tensor, requests->of_tensor[T_NAME]) : NULL;
    PyObject *output = name == NULL ? NULL : find_wanted(requests, wanted, name);
    int is_binary = self->wishes.is_binary, has_place = 0;
    if (output == NULL)
        return 0;
    if (output != Py_None) {
        if (PyObject_IsTrue(slot(output, requests->of_output[W_CLASSIFICATION])))
            return 0;
        is_binary = slot(output, requests->of_output[W_BINARY]) == Py_True;
        has_place = slot(output, requests->of_output[W_REGION]) != Py_None;
    }
    /* The client has what lies in its memory, and knows its size and place. */
    return put_tensor(requests, to, tensor) &&
           (has_place || (is_binary ? put_binary(requests, to, tensor) : put_values(requests, to, tensor))) && PUT(to, "}");
}

static int put_parameters(struct response *to, PyObject *parameters)
{
    PyObject *key, *value;
    int done = PyDict_GET_SIZE(parameters) == 0 || PUT(to, ",\"parameters\":");
    for (Py_ssize_t at = 0, i = 0; done && PyDict_Next(parameters, &at, &key, &value); i++) {
        done = put(to, i > 0 ? "," : "{", 1) && put_string(to, key) && PUT(to, ":");
        if (PyLong_CheckExact(value)) {
            unsigned long long number = PyLong_AsUnsignedLongLong(value);
            done = done && !PyErr_Occurred() && put_number(to, number);
        } else
            done = done && (value == Py_True ? PUT(to, "true") : value == Py_False ? PUT(to, "false") : put_string(to, value));
    }
    return done && (PyDict_GET_SIZE(parameters) == 0 || PUT(to, "}"));
}

static int put_document(const Matched *self, struct response *to, PyObject *response)
{
    const HttpRequests *requests = self->requests;
    PyObject *id = slot(response, requests->of_response[A_ID]), *outputs = slot(response, requests->of_response[A_OUTPUTS]);
    PyObject *wanted = slot(self->request, requests->of_request[Q_OUTPUTS]);
    if (id != NULL && PyUnicode_Check(id) && PyUnicode_GET_LENGTH(id) == 0)
        id = slot(self->request, requests->of_request[Q_ID]);
    if (id == NULL || !PyUnicode_Check(id) || outputs == NULL || !PyTuple_CheckExact(outputs) ||
        PyTuple_GET_SIZE(outputs) > MAX_OUTPUTS || !PUT(to, "{"))
        return 0;
    if (PyUnicode_GET_LENGTH(id) > 0 && !(PUT(to, "\"id\":") && put_string(to, id) && PUT(to, ",")))
        return 0;
    if (!PUT(to, "\"model_name\":") || !put_string(to, slot(response, requests->of_response[A_MODEL_NAME])) ||
        !PUT(to, ",\"model_version\":") || !put_string(to, slot(response, requests->of_response[A_MODEL_VERSION])) ||
        !put_parameters(to, slot(response, requests->of_response[A_PARAMETERS])) || !PUT(to, ",\"outputs\":["))
        return 0;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(outputs); i++)
        if ((i > 0 && !PUT(to, ",")) || !put_output(self, to, wanted, PyTuple_GET_ITEM(outputs, i)))
            return 0;
    return PUT(to, "]}");
}

/* Whether a response is the only one of its request, and succeeded. */
static int is_plain(const HttpRequests *self, PyObject *response)
{
    if (!Py_IS_TYPE(response, self->response))
        return 0;
    PyObject *parameters = slot(response, self->of_response[A_PARAMETERS]);
    return slot(response, self->of_response[A_FINAL]) == Py_True && slot(response, self->of_response[A_FAILURE]) == Py_None &&
           parameters != NULL && PyDict_CheckExact(parameters);
}

/* Return head, JSON and binary tensors; `heads` are the two parts of a head around the length of a body of JSON, and the
three of one around the lengths of the JSON and of the body. */
static PyObject *join(PyObject *heads, const struct response *of)
{
    char digits[2][MAX_DIGITS];
    Py_ssize_t first = of->size > 0 ? 2 : 0, count = of->size > 0 ? 3 : 2, size = of->json_size + of->size;
    Py_ssize_t lengths[] = {write_digits(digits[0], (uint64_t)of->json_size) - digits[0],
                            write_digits(digits[1], (uint64_t)(of->json_size + of->size)) - digits[1]};
    for (Py_ssize_t i = 0; i < count; i++)
        size += PyBytes_GET_SIZE(PyTuple_GET_ITEM(heads, first + i)) + (i > 0 ? lengths[i + 2 - count] : 0);
    PyObject *joined = PyBytes_FromStringAndSize(NULL, size);
    if (joined == NULL)
        return NULL;
    char *to = PyBytes_AS_STRING(joined);
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *head = PyTuple_GET_ITEM(heads, first + i);
        if (i > 0)
            to = put_bytes(to, digits[i + 2 - count], (size_t)lengths[i + 2 - count]);
        to = put_bytes(to, PyBytes_AS_STRING(head), (size_t)PyBytes_GET_SIZE(head));
    }
    to = put_bytes(to, of->json, (size_t)of->json_size);
    for (Py_ssize_t i = 0; i < of->binaries; i++)
        to = put_bytes(to, of->binary[i].buf, (size_t)of->binary[i].len);
    return joined;
}

PyObject *write_http_response(const Matched *self, PyObject *response)
{
    struct response made;
    PyObject *joined = NULL;
    if (!is_plain(self->requests, response))
        return NULL;
    made.json_size = made.binaries = made.size = 0;
    if (put_document(self, &made, response))
        joined = join(self->requests->response_heads, &made);
    for (Py_ssize_t i = 0; i < made.binaries; i++)
        PyBuffer_Release(&made.binary[i]);
    return joined;
}
