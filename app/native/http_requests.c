/* The type `HttpRequests`: reads the requests of one front. */
#include "http_requests.h"

/* Return the key of a head as bytes. */
static PyObject *key_of(const struct head *head)
{
    return PyBytes_FromStringAndSize(head->key, (Py_ssize_t)head->key_size);
}

/* Return what is known of a head, borrowed; NULL, perhaps with an error, for an unknown one. */
static PyObject *find_known(const HttpRequests *self, const struct head *head)
{
    PyObject *key = key_of(head);
    PyObject *known = key == NULL ? NULL : PyDict_GetItemWithError(self->heads, key);
    Py_XDECREF(key);
    return known;
}

/* Know the head of a request that Python has read, of which `owner` submits and answers those like it. */
static PyObject *add(HttpRequests *self, PyObject *arguments)
{
    PyObject *data, *owner, *model, *version;
    struct head head;
    if (!PyArg_ParseTuple(arguments, "SOUU:add", &data, &owner, &model, &version))
        return NULL;
    if (!read_head(PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data), self->others, &head))
        Py_RETURN_FALSE;
    if (find_known(self, &head) != NULL)
        Py_RETURN_TRUE;
    if (PyDict_GET_SIZE(self->heads) >= MAX_HEADS || self->kept + head.size > MAX_KEPT) {
        PyDict_Clear(self->heads);
        self->kept = 0;
    }
    PyObject *key = key_of(&head), *known = Py_BuildValue("(OOO)", owner, model, version);
    int failed = key == NULL || known == NULL || PyDict_SetItem(self->heads, key, known) < 0;
    Py_XDECREF(key);
    Py_XDECREF(known);
    self->kept += head.size;
    return failed ? NULL : Py_NewRef(Py_True);
}

/* Whether a request is in one piece, within the limits, and has a JSON part that is read at once. */
static int is_whole(const HttpRequests *self, const struct head *head, Py_ssize_t size)
{
    Py_ssize_t json = head->json_length < 0 ? head->content_length : head->json_length;
    return head->content_length == size - head->size && head->size <= self->max_head &&
           head->content_length <= self->max_body && json > 0 && json <= head->content_length && json <= MAX_JSON;
}

/* Return the request that these bytes are, for a connection; None where Python has to read it. */
static PyObject *match(HttpRequests *self, PyObject *const *arguments, Py_ssize_t count)
{
    if (count != 2) {
        PyErr_SetString(PyExc_TypeError, "data, connection");
        return NULL;
    }
    PyObject *data = arguments[0], *known, *request;
    struct head head;
    if (!PyBytes_CheckExact(data) ||
        !read_head(PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data), self->others, &head) ||
        !is_whole(self, &head, PyBytes_GET_SIZE(data)))
        Py_RETURN_NONE;
    known = find_known(self, &head);
    if (known == NULL)
        return PyErr_Occurred() ? NULL : Py_NewRef(Py_None);
    Py_INCREF(known); /* what is made of the request could clear the heads */
    Py_ssize_t json = head.json_length < 0 ? head.content_length : head.json_length;
    struct body body = {.object = data,
                        .model = PyTuple_GET_ITEM(known, 1),
                        .version = PyTuple_GET_ITEM(known, 2),
                        .bytes = PyBytes_AS_STRING(data),
                        .start = head.size,
                        .json_end = head.size + json,
                        .end = PyBytes_GET_SIZE(data)};
    struct wishes wishes;
    Matched *matched = NULL;
    if (json > (Py_ssize_t)self->max_size)
        request = NULL;
    else
        request = read_json_request(self->json, &body, self->max_size, &wishes);
    if (request != NULL)
        matched = make_matched(self, PyTuple_GET_ITEM(known, 0), arguments[1], request, wishes);
    Py_XDECREF(request);
    Py_DECREF(known);
    if (matched == NULL && PyErr_Occurred() && PyErr_ExceptionMatches(PyExc_Exception))
        PyErr_Clear();
    return matched != NULL || PyErr_Occurred() ? (PyObject *)matched : Py_NewRef(Py_None);
}

static int are_bytes(PyObject *tuple)
{
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(tuple); i++)
        if (!PyBytes_CheckExact(PyTuple_GET_ITEM(tuple, i)))
            return 0;
    return 1;
}

static PyObject *new_requests(PyTypeObject *type, PyObject *arguments, PyObject *keywords)
{
    PyObject *tensor, *output, *request, *response, *json, *others, *heads, *encode_data;
    unsigned long long max_size;
    Py_ssize_t max_head, max_body;
    if (keywords != NULL ||
        !PyArg_ParseTuple(arguments, "O!O!O!O!OO!O!OKnn:HttpRequests", &PyType_Type, &tensor, &PyType_Type, &output,
                          &PyType_Type, &request, &PyType_Type, &response, &json, &PyTuple_Type, &others, &PyTuple_Type,
                          &heads, &encode_data, &max_size, &max_head, &max_body) ||
        !are_json_types(json) || PyTuple_GET_SIZE(heads) != 5 || !are_bytes(heads) || !are_bytes(others)) {
        if (!PyErr_Occurred())
            PyErr_SetString(PyExc_TypeError, "types, a reader, bytes, a function and limits");
        return NULL;
    }
    HttpRequests *self = (HttpRequests *)type->tp_alloc(type, 0);
    if (self == NULL)
        return NULL;
    self->given = Py_NewRef(arguments); /* keeps what follows */
    self->tensor = (PyTypeObject *)tensor;
    self->output = (PyTypeObject *)output;
    self->response = (PyTypeObject *)response;
    self->json = json;
    self->others = others;
    self->response_heads = heads;
    self->encode_data = encode_data;
    self->max_size = max_size;
    self->max_head = max_head;
    self->max_body = max_body;
    self->heads = PyDict_New();
    self->matched = (PyTypeObject *)PyType_FromModuleAndSpec(PyType_GetModule(type), &matched_specification, NULL);
    if (self->heads == NULL || self->matched == NULL ||
        find_slots(self->tensor, T_NAMES, self->of_tensor, __FILE__) < 0 ||
        find_slots(self->output, W_NAMES, self->of_output, __FILE__) < 0 ||
        find_slots((PyTypeObject *)request, Q_NAMES, self->of_request, __FILE__) < 0 ||
        find_slots(self->response, A_NAMES, self->of_response, __FILE__) < 0)
        Py_CLEAR(self);
    return (PyObject *)self;
}

static int traverse(HttpRequests *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(self->matched);
    Py_VISIT(self->given);
    Py_VISIT(self->heads);
    return 0;
}

static int clear(HttpRequests *self)
{
    if (self->heads != NULL)
        PyDict_Clear(self->heads);
    return 0;
}

static void delete(HttpRequests *self)
{
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    Py_XDECREF(self->matched);
    Py_XDECREF(self->given);
    Py_XDECREF(self->heads);
    type->tp_free(self);
    Py_DECREF(type);
}

static PyMethodDef methods[] = {
    {"add", (PyCFunction)add, METH_VARARGS, "Know the head of a request, and what submits those like it."},
    {"match", (PyCFunction)(void (*)(void))match, METH_FASTCALL, "Return the request that these bytes are."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot slots[] = {
    {Py_tp_new, new_requests}, {Py_tp_traverse, traverse}, {Py_tp_clear, clear},
    {Py_tp_dealloc, delete},   {Py_tp_methods, methods},   {0, NULL},
};

static PyType_Spec specification = {
    .name = "app.native.extension.HttpRequests",
    .basicsize = sizeof(HttpRequests),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = slots,
};

int add_http_requests(PyObject *module)
{
    return add_type(module, &specification, NULL);
}
