/* The type `UnaryCalls`. */
#include "calls.h"

static const char *const *const slot_names[CALL_TYPES] = {
    [CONNECTION] = C_NAMES, [READER] = R_NAMES,  [OUTPUT] = O_NAMES, [KEEPALIVE] = K_NAMES, [STREAM] = S_NAMES,
    [CALL] = U_NAMES,       [REQUEST] = Q_NAMES, [ANSWER] = A_NAMES, [TENSOR] = T_NAMES,    [WANTED] = W_NAMES,
    [MESSAGE] = M_NAMES};

int set_number(const UnaryCalls *self, enum call_type type, PyObject *object, int number, long long value)
{
    PyObject *made = PyLong_FromLongLong(value);
    if (made == NULL)
        return -1;
    set(self, type, object, number, made);
    return 0;
}

int get_count(const UnaryCalls *self, PyObject *name, long long *count)
{
    PyObject *value = PyObject_GetAttr(self->state, name);
    if (value == NULL)
        return -1;
    int found = get_number(value, count);
    Py_DECREF(value);
    if (!found)
        PyErr_SetString(PyExc_TypeError, "a count is no int");
    return found ? 0 : -1;
}

int set_count(const UnaryCalls *self, PyObject *name, long long count)
{
    PyObject *value = PyLong_FromLongLong(count);
    int result = value == NULL ? -1 : PyObject_SetAttr(self->state, name, value);
    Py_XDECREF(value);
    return result;
}

static int bind(UnaryCalls *self, enum call_type type, PyObject *given)
{
    if (!PyType_Check(given)) {
        PyErr_SetString(PyExc_TypeError, "types are expected");
        return -1;
    }
    self->types[type] = (PyTypeObject *)Py_NewRef(given);
    return slot_names[type] == NULL ? 0 : find_slots(self->types[type], slot_names[type], self->slots[type], __FILE__);
}

static int make_constants(UnaryCalls *self)
{
    self->calls = PyUnicode_InternFromString("calls");
    self->buffered = PyUnicode_InternFromString("buffered");
    self->count = PyUnicode_InternFromString("count");
    self->start_timer = PyUnicode_InternFromString("start_timer");
    self->open = PyUnicode_InternFromString("_open");
    self->cancel = PyUnicode_InternFromString("cancel");
    self->flush = PyUnicode_InternFromString("flush");
    self->call_soon = PyUnicode_InternFromString("call_soon");
    self->identity = PyUnicode_InternFromString("identity");
    self->gzip = PyUnicode_InternFromString("gzip");
    self->begin_message = PyUnicode_InternFromString("begin_message");
    self->request_names = Py_BuildValue("(sssssss)", "sequence_id", "sequence_start", "sequence_end", "priority", "timeout_us",
                                        "regions", "deadline");
    self->output_names = Py_BuildValue("(s)", "region");
    self->sink_type = make_sink_type();
    self->decoder_type = make_decoder_type();
    self->zero = PyLong_FromLong(0);
    self->no_deadline = PyFloat_FromDouble(0.0);
    return PyErr_Occurred() ? -1 : 0;
}

static PyObject *new_calls(PyTypeObject *type, PyObject *arguments, PyObject *keywords)
{
    static char *keyword_names[] = {"types",       "state",        "handlers",     "on_cancel",
                                    "headers",     "trailers",     "static_table", "huffman",
                                    "decode_metadata", "refuse",   "decode_request", "max_header",   "max_calls",
                                    "max_streams", "max_buffered", "max_message",  "max_control_frames",
                                    "stream_window", "connection_window", "max_frame", NULL};
    UnaryCalls *self = (UnaryCalls *)type->tp_alloc(type, 0);
    if (self == NULL)
        return NULL;
    PyObject *types, *state, *handlers, *on_cancel, *headers, *trailers, *table, *huffman, *metadata, *refuse, *otherwise;
    int made = PyArg_ParseTupleAndKeywords(
        arguments, keywords, "O!OO!OSSO!SOOOLLLLLLLLL", keyword_names, &PyTuple_Type, &types, &state, &PyDict_Type, &handlers,
        &on_cancel, &headers, &trailers, &PyTuple_Type, &table, &huffman, &metadata, &refuse, &otherwise, &self->max_header, &self->max_calls, &self->max_streams, &self->max_buffered,
        &self->max_message, &self->max_control_frames, &self->stream_window, &self->connection_window,
        &self->max_frame);
    if (made) {
        self->state = Py_NewRef(state);
        self->handlers = Py_NewRef(handlers);
        self->on_cancel = Py_NewRef(on_cancel);
        self->headers = Py_NewRef(headers);
        self->trailers = Py_NewRef(trailers);
        self->static_table = Py_NewRef(table);
        self->huffman = Py_NewRef(huffman);
        self->decode_metadata = Py_NewRef(metadata);
        self->refuse = Py_NewRef(refuse);
        self->decode_request = Py_NewRef(otherwise);
        made = make_constants(self) == 0 && PyTuple_GET_SIZE(types) == CALL_TYPES && PyBytes_GET_SIZE(huffman) == HUFFMAN_SIZE;
        if (!made && !PyErr_Occurred())
            PyErr_SetString(PyExc_TypeError, "a wrong number of types or states");
    }
    for (int i = 0; made && i < CALL_TYPES; i++)
        made = bind(self, i, PyTuple_GET_ITEM(types, i)) == 0;
    if (!made)
        Py_CLEAR(self);
    return (PyObject *)self;
}

/* Without `clear`: whatever it is in a cycle with breaks it. */
static int traverse(UnaryCalls *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(self));
    for (int i = 0; i < CALL_TYPES; i++)
        Py_VISIT(self->types[i]);
    Py_VISIT(self->state);
    Py_VISIT(self->handlers);
    Py_VISIT(self->on_cancel);
    Py_VISIT(self->decode_request);
    return 0;
}

static void delete_calls(UnaryCalls *self)
{
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    for (int i = 0; i < CALL_TYPES; i++)
        Py_XDECREF(self->types[i]);
    PyObject *held[] = {self->state,        self->handlers,     self->on_cancel,   self->headers,  self->trailers,
                        self->static_table, self->huffman,      self->decode_metadata, self->refuse, self->decode_request,
                        self->request_names, self->output_names, self->calls,      self->buffered, self->count,
                        self->start_timer,  self->open,         self->cancel,      self->flush,    self->call_soon,
                        self->identity,     self->gzip,         self->zero,        self->no_deadline, self->begin_message,
                        (PyObject *)self->sink_type, (PyObject *)self->decoder_type};
    for (size_t i = 0; i < sizeof held / sizeof *held; i++)
        Py_XDECREF(held[i]);
    type->tp_free(self);
    Py_DECREF(type);
}

static PyMethodDef methods[] = {
    {"receive", (PyCFunction)(void (*)(void))receive_calls, METH_FASTCALL, NULL},
    {"sink", (PyCFunction)(void (*)(void))make_sink, METH_FASTCALL, NULL},
    {"header_decoder", (PyCFunction)make_decoder, METH_NOARGS, NULL},
    {"read", (PyCFunction)(void (*)(void))read_message, METH_FASTCALL, NULL},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot slots[] = {
    {Py_tp_new, new_calls},
    {Py_tp_dealloc, delete_calls},
    {Py_tp_traverse, traverse},
    {Py_tp_methods, methods},
    {0, NULL},
};

static PyType_Spec spec = {
    .name = "app.native.extension.UnaryCalls",
    .basicsize = sizeof(UnaryCalls),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE | Py_TPFLAGS_HAVE_GC,
    .slots = slots,
};

int add_calls(PyObject *module)
{
    PyObject *type = PyType_FromModuleAndSpec(module, &spec, NULL);
    int added = type == NULL ? -1 : PyModule_AddType(module, (PyTypeObject *)type);
    Py_XDECREF(type);
    return added;
}
