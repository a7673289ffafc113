/* The type `InferRequests`: requests that repeat, by the templates of `app/protocol/grpc/compiled.py`, which
leaves all others to Python. NULL without an error is for those, malformed bytes among them. */
#include "module.h"

#include <stdint.h>
#include <string.h>

enum { ID_TAG = 0x1a, RAW_TAG = 0x3a, LENGTH_DELIMITED = 2, VIEWED_FROM = 4096, LONGEST_HEADER = 4096, MAX_RAW = 64 };
enum { MODEL_NAME, MODEL_VERSION, INPUTS, OUTPUTS, PARAMETERS, PRIORITY, TIMEOUT, REGIONS, RAW_COUNT, TEMPLATE_FIELDS };
enum { POSITIONAL = 6, NAMED = 4 };

typedef struct {
    PyObject_HEAD
    PyObject *tensor, *request, *templates, *otherwise;
    PyObject *names; /* keyword names of a request */
} InferRequests;

/* A message in parts; `raw` are places in it. */
struct parts {
    unsigned char header[LONGEST_HEADER];
    size_t header_size;
    const unsigned char *id;
    Py_ssize_t id_size, count;
    struct {
        Py_ssize_t start, size;
    } raw[MAX_RAW];
};

/* Read the length of a field; return where it ends, 0 if it does not within the message. */
static Py_ssize_t read_length(const unsigned char *bytes, Py_ssize_t at, Py_ssize_t size, Py_ssize_t *length)
{
    uint64_t value = 0;
    for (int i = 0; i < 5 && at < size; i++) {
        unsigned char byte = bytes[at++];
        value |= (uint64_t)(byte & 0x7f) << 7 * i;
        if (byte < 0x80) {
            *length = (Py_ssize_t)value;
            return at;
        }
    }
    return 0;
}

static int add_header(struct parts *parts, const unsigned char *field, Py_ssize_t size)
{
    if (parts->header_size + (size_t)size > LONGEST_HEADER)
        return 0;
    memcpy(parts->header + parts->header_size, field, (size_t)size);
    parts->header_size += (size_t)size;
    return 1;
}

/* Add the field from `at` on, whose content begins at `start`. */
static int add_field(struct parts *parts, const unsigned char *bytes, Py_ssize_t at, Py_ssize_t start, Py_ssize_t length)
{
    if (bytes[at] == RAW_TAG) {
        if (parts->count == MAX_RAW)
            return 0;
        parts->raw[parts->count].start = start;
        parts->raw[parts->count++].size = length;
        return 1;
    }
    if (bytes[at] != ID_TAG)
        return add_header(parts, bytes + at, start + length - at);
    if (parts->id != NULL)
        return 0;
    parts->id = bytes + start;
    parts->id_size = length;
    return 1;
}

/* Split a message; return 0 if it is not that simple. */
static int split(struct parts *parts, const unsigned char *bytes, Py_ssize_t size)
{
    Py_ssize_t at = 0, length = 0;
    parts->header_size = 0;
    parts->id = NULL;
    parts->id_size = parts->count = 0;
    while (at < size) {
        Py_ssize_t start = read_length(bytes, at + 1, size, &length);
        if ((bytes[at] & 7) != LENGTH_DELIMITED || bytes[at] > 0x7f || !start || length > size - start ||
            !add_field(parts, bytes, at, start, length))
            return 0;
        at = start + length;
    }
    return 1;
}

/* Return a raw content: a short one is a copy, a long one a view. */
static PyObject *raw_content(PyObject *data, const unsigned char *bytes, Py_ssize_t start, Py_ssize_t size)
{
    if (size < VIEWED_FROM)
        return PyBytes_FromStringAndSize((const char *)bytes + start, size);
    PyObject *view = PyMemoryView_FromObject(data);
    PyObject *content = view == NULL ? NULL : PySequence_GetSlice(view, start, start + size);
    Py_XDECREF(view);
    return content;
}

/* Make an input, of an `_Input` and the next raw content, which is counted if it is used. */
static PyObject *make_input(InferRequests *self, PyObject *given, PyObject *data, const unsigned char *bytes,
                            const struct parts *parts, Py_ssize_t *used)
{
    if (!PyTuple_Check(given) || PyTuple_GET_SIZE(given) != 4)
        return NULL;
    PyObject *content = Py_NewRef(PyTuple_GET_ITEM(given, 3));
    if (content == Py_None) {
        Py_DECREF(content);
        if (*used == parts->count)
            return NULL;
        content = raw_content(data, bytes, parts->raw[*used].start, parts->raw[*used].size);
        ++*used;
    }
    if (content == NULL)
        return NULL;
    PyObject *arguments[] = {PyTuple_GET_ITEM(given, 0), PyTuple_GET_ITEM(given, 1), PyTuple_GET_ITEM(given, 2), content};
    PyObject *made = PyObject_Vectorcall(self->tensor, arguments, 4, NULL);
    Py_DECREF(content);
    return made;
}

static PyObject *make_inputs(InferRequests *self, PyObject *given, PyObject *data, const unsigned char *bytes,
                             const struct parts *parts)
{
    Py_ssize_t size = PyTuple_CheckExact(given) ? PyTuple_GET_SIZE(given) : -1, used = 0;
    PyObject *inputs = size < 0 ? NULL : PyTuple_New(size);
    for (Py_ssize_t i = 0; inputs != NULL && i < size; i++) {
        PyObject *input = make_input(self, PyTuple_GET_ITEM(given, i), data, bytes, parts, &used);
        if (input == NULL)
            Py_CLEAR(inputs);
        else
            PyTuple_SET_ITEM(inputs, i, input);
    }
    return inputs;
}

static PyObject *apply(InferRequests *self, PyObject *template, PyObject *deadline, PyObject *data,
                       const unsigned char *bytes, const struct parts *parts)
{
    PyObject *inputs = make_inputs(self, PyTuple_GET_ITEM(template, INPUTS), data, bytes, parts);
    PyObject *id = inputs == NULL ? NULL : PyUnicode_DecodeUTF8((const char *)parts->id, parts->id_size, NULL);
    PyObject *request = NULL;
    if (id != NULL) {
        PyObject *arguments[POSITIONAL + NAMED] = {
            PyTuple_GET_ITEM(template, MODEL_NAME), PyTuple_GET_ITEM(template, MODEL_VERSION), inputs,
            PyTuple_GET_ITEM(template, OUTPUTS), id, PyTuple_GET_ITEM(template, PARAMETERS),
            PyTuple_GET_ITEM(template, PRIORITY), PyTuple_GET_ITEM(template, TIMEOUT), PyTuple_GET_ITEM(template, REGIONS),
            deadline};
        request = PyObject_Vectorcall(self->request, arguments, POSITIONAL, self->names);
    }
    Py_XDECREF(inputs);
    Py_XDECREF(id);
    return request;
}

static PyObject *read_parts(InferRequests *self, PyObject *data, const Py_buffer *view, PyObject *deadline)
{
    struct parts parts;
    if (!split(&parts, view->buf, view->len))
        return NULL;
    PyObject *key = PyBytes_FromStringAndSize((const char *)parts.header, (Py_ssize_t)parts.header_size);
    PyObject *template = key == NULL ? NULL : PyDict_GetItemWithError(self->templates, key);
    Py_XDECREF(key);
    if (template == NULL || !PyTuple_Check(template) || PyTuple_GET_SIZE(template) != TEMPLATE_FIELDS)
        return NULL;
    Py_INCREF(template);
    PyObject *request = apply(self, template, deadline, data, view->buf, &parts);
    Py_DECREF(template);
    return request;
}

static PyObject *read_request(InferRequests *self, PyObject *const *arguments, Py_ssize_t count)
{
    Py_buffer view;
    if (count != 2) {
        PyErr_SetString(PyExc_TypeError, "data, deadline");
        return NULL;
    }
    if (PyObject_GetBuffer(arguments[0], &view, PyBUF_SIMPLE) < 0)
        return NULL;
    PyObject *request = read_parts(self, arguments[0], &view, arguments[1]);
    PyBuffer_Release(&view);
    if (request != NULL || (PyErr_Occurred() && PyErr_ExceptionMatches(PyExc_MemoryError)))
        return request;
    PyErr_Clear();
    return PyObject_Vectorcall(self->otherwise, arguments, 2, NULL);
}

static PyObject *new_requests(PyTypeObject *type, PyObject *arguments, PyObject *keywords)
{
    static char *keyword_names[] = {"tensor", "request", "templates", "otherwise", NULL};
    PyObject *tensor, *request, *templates, *otherwise;
    if (!PyArg_ParseTupleAndKeywords(arguments, keywords, "O!O!O!O", keyword_names, &PyType_Type, &tensor, &PyType_Type,
                                     &request, &PyDict_Type, &templates, &otherwise))
        return NULL;
    InferRequests *self = (InferRequests *)type->tp_alloc(type, 0);
    if (self == NULL)
        return NULL;
    self->tensor = Py_NewRef(tensor);
    self->request = Py_NewRef(request);
    self->templates = Py_NewRef(templates);
    self->otherwise = Py_NewRef(otherwise);
    self->names = Py_BuildValue("(ssss)", "priority", "timeout_us", "regions", "deadline");
    if (self->names == NULL)
        Py_CLEAR(self);
    return (PyObject *)self;
}

static void delete_requests(InferRequests *self)
{
    PyTypeObject *type = Py_TYPE(self);
    Py_XDECREF(self->tensor);
    Py_XDECREF(self->request);
    Py_XDECREF(self->templates);
    Py_XDECREF(self->otherwise);
    Py_XDECREF(self->names);
    type->tp_free(self);
    Py_DECREF(type);
}

static PyMethodDef methods[] = {
    {"read", (PyCFunction)(void (*)(void))read_request, METH_FASTCALL, NULL},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot slots[] = {
    {Py_tp_new, new_requests},
    {Py_tp_dealloc, delete_requests},
    {Py_tp_methods, methods},
    {0, NULL},
};

static PyType_Spec spec = {
    .name = "app.native.extension.InferRequests",
    .basicsize = sizeof(InferRequests),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = slots,
};

int add_infer_requests(PyObject *module)
{
    PyObject *type = PyType_FromModuleAndSpec(module, &spec, NULL);
    int added = type == NULL ? -1 : PyModule_AddType(module, (PyTypeObject *)type);
    Py_XDECREF(type);
    return added;
}
