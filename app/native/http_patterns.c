/* The types `Patterns` and `Pattern`: what requests look like, and which of them one is. */
#include "http_patterns.h"

#include <string.h>

/* Bytes of a request that choose where to look; few clients send less. */
enum { KEY_BYTES = 128 };
/* Patterns learned that begin alike and are as long, after which no more of them are. */
enum { MAX_LEARNED = 32 };

static uint64_t key_of(const char *data, Py_ssize_t size)
{
    uint64_t key = (uint64_t)size, word;
    for (int i = 0; i < KEY_BYTES; i += 8) {
        memcpy(&word, data + i, 8);
        key = (key ^ word) * 0x9e3779b97f4a7c15u;
        key ^= key >> 32;
    }
    return key;
}

static int read_holes(Pattern *self, PyObject *holes)
{
    Py_ssize_t position = 0, count = PyTuple_GET_SIZE(holes);
    for (Py_ssize_t i = 0; i < count && i < MAX_HOLES; i++) {
        struct hole *hole = &self->hole[i];
        if (!PyTuple_Check(PyTuple_GET_ITEM(holes, i)) ||
            !PyArg_ParseTuple(PyTuple_GET_ITEM(holes, i), "nnn", &hole->start, &hole->end, &hole->input))
            return -1;
        if (hole->start < position || hole->end < hole->start || hole->end > PyBytes_GET_SIZE(self->sample) ||
            hole->input < -1 || hole->input >= self->inputs)
            return -1;
        position = hole->end;
    }
    self->holes = count;
    return count > MAX_HOLES ? -1 : 0;
}

static int read_inputs(Pattern *self)
{
    Py_ssize_t binary = self->total - PyBytes_GET_SIZE(self->sample), count = PyTuple_GET_SIZE(self->given);
    for (Py_ssize_t i = 0; i < count && i < MAX_INPUTS; i++) {
        struct input *input = &self->input[i];
        if (!PyTuple_Check(PyTuple_GET_ITEM(self->given, i)) ||
            !PyArg_ParseTuple(PyTuple_GET_ITEM(self->given, i), "UUO!nnO", &input->name, &input->datatype,
                              &PyTuple_Type, &input->shape, &input->start, &input->end, &input->source))
            return -1;
        if (input->start < 0 || input->end < input->start || input->end > binary)
            return -1;
    }
    self->inputs = count;
    return count > MAX_INPUTS ? -1 : 0;
}

/* Whether each tensor that is read from the JSON has one hole, the id at most one, and nothing else any. */
static int fit_together(const Pattern *self)
{
    int ids = 0;
    for (Py_ssize_t i = 0; i < self->holes; i++)
        ids += self->hole[i].input < 0;
    for (Py_ssize_t i = 0; i < self->inputs; i++) {
        int holes = 0;
        for (Py_ssize_t j = 0; j < self->holes; j++)
            holes += self->hole[j].input == i;
        if (holes != !!PyCallable_Check(self->input[i].source))
            return 0;
    }
    return ids <= 1;
}

static int traverse_pattern(Pattern *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(self->given);
    Py_VISIT(self->fields);
    Py_VISIT(self->owner);
    for (int i = 0; i < ANSWERS; i++)
        Py_VISIT(self->answers[i]);
    return 0;
}

static int clear_pattern(Pattern *self)
{
    self->inputs = self->holes = 0; /* they borrow from what is dropped */
    self->total = -1;
    Py_CLEAR(self->given);
    Py_CLEAR(self->fields);
    Py_CLEAR(self->owner);
    for (int i = 0; i < ANSWERS; i++)
        Py_CLEAR(self->answers[i]);
    return 0;
}

static void delete_pattern(Pattern *self)
{
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    clear_pattern(self);
    Py_CLEAR(self->sample);
    type->tp_free(self);
    Py_DECREF(type);
}

static PyType_Slot pattern_slots[] = {
    {Py_tp_traverse, traverse_pattern},
    {Py_tp_clear, clear_pattern},
    {Py_tp_dealloc, delete_pattern},
    {0, NULL},
};

static PyType_Spec pattern_specification = {
    .name = "app.native.extension.Pattern",
    .basicsize = sizeof(Pattern),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_IMMUTABLETYPE | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .slots = pattern_slots,
};

/* Return a new pattern; NULL, with an error if the arguments do not fit together. */
static Pattern *make_pattern(Patterns *self, PyObject *arguments)
{
    PyObject *data, *holes, *given, *fields, *owner;
    Py_ssize_t json_end;
    if (!PyArg_ParseTuple(arguments, "SnO!O!O!O:add", &data, &json_end, &PyTuple_Type, &holes, &PyTuple_Type, &given,
                          &PyTuple_Type, &fields, &owner))
        return NULL;
    if (PyBytes_GET_SIZE(data) < KEY_BYTES || PyTuple_GET_SIZE(given) > MAX_INPUTS)
        return NULL;
    Pattern *pattern = (Pattern *)self->pattern->tp_alloc(self->pattern, 0);
    if (pattern == NULL)
        return NULL;
    pattern->given = Py_NewRef(given);
    pattern->fields = Py_NewRef(fields);
    pattern->owner = Py_NewRef(owner);
    pattern->total = PyBytes_GET_SIZE(data);
    int fits = json_end >= 0 && json_end <= pattern->total && PyTuple_GET_SIZE(fields) == 6 &&
               PyUnicode_CheckExact(PyTuple_GET_ITEM(fields, 3));
    if (fits) {
        pattern->key = key_of(PyBytes_AS_STRING(data), pattern->total);
        pattern->sample = PyBytes_FromStringAndSize(PyBytes_AS_STRING(data), json_end);
    }
    if (!fits || pattern->sample == NULL || read_inputs(pattern) < 0 || read_holes(pattern, holes) < 0 ||
        !fit_together(pattern)) {
        Py_CLEAR(pattern);
        if (!PyErr_Occurred())
            PyErr_SetString(PyExc_ValueError, "no pattern");
    }
    return pattern;
}

static PyObject *add(Patterns *self, PyObject *arguments)
{
    Pattern *pattern = make_pattern(self, arguments);
    if (pattern == NULL && PyErr_Occurred())
        return NULL;
    if (pattern == NULL)
        Py_RETURN_FALSE;
    size_t set = pattern->key % SETS;
    self->next_way[set] = (unsigned char)((self->next_way[set] + 1) % WAYS);
    Py_XSETREF(self->ways[set][self->next_way[set]], pattern);
    Py_RETURN_TRUE;
}

/* Whether a request is to be learned: as one like it came before, and they are not too many. */
static PyObject *wants(Patterns *self, PyObject *data)
{
    if (!PyBytes_Check(data) || PyBytes_GET_SIZE(data) < KEY_BYTES)
        Py_RETURN_FALSE;
    uint64_t key = key_of(PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data));
    size_t place = key % SEEN;
    if (self->seen[place] != key) {
        self->seen[place] = key;
        self->learned[place] = 0;
        Py_RETURN_FALSE;
    }
    if (self->learned[place] == MAX_LEARNED)
        Py_RETURN_FALSE;
    self->learned[place]++;
    Py_RETURN_TRUE;
}

/* Return the request that these bytes are, else None. */
static PyObject *match(Patterns *self, PyObject *const *arguments, Py_ssize_t count)
{
    if (count != 2) {
        PyErr_SetString(PyExc_TypeError, "data, connection");
        return NULL;
    }
    PyObject *data = arguments[0];
    if (!PyBytes_CheckExact(data) || PyBytes_GET_SIZE(data) < KEY_BYTES)
        Py_RETURN_NONE;
    Py_ssize_t size = PyBytes_GET_SIZE(data);
    uint64_t key = key_of(PyBytes_AS_STRING(data), size);
    for (int way = 0; way < WAYS; way++) {
        Pattern *pattern = self->ways[key % SETS][way];
        if (pattern == NULL || pattern->key != key || pattern->total != size)
            continue;
        Py_INCREF(pattern); /* what reads a tensor could learn another pattern */
        Matched *matched = match_pattern(self, pattern, data, arguments[1]);
        Py_DECREF(pattern);
        if (matched != NULL)
            return (PyObject *)matched;
        if (PyErr_Occurred()) { /* by Python, which tells the client when it reads all of the request */
            if (!PyErr_ExceptionMatches(PyExc_Exception))
                return NULL;
            PyErr_Clear();
        }
    }
    Py_RETURN_NONE;
}

static PyObject *new_patterns(PyTypeObject *type, PyObject *arguments, PyObject *keywords)
{
    PyObject *tensor, *request, *response, *encode_data;
    if (keywords != NULL || !PyArg_ParseTuple(arguments, "O!O!O!O:Patterns", &PyType_Type, &tensor, &PyType_Type,
                                              &request, &PyType_Type, &response, &encode_data)) {
        if (!PyErr_Occurred())
            PyErr_SetString(PyExc_TypeError, "no keywords");
        return NULL;
    }
    Patterns *self = (Patterns *)type->tp_alloc(type, 0);
    if (self == NULL)
        return NULL;
    self->tensor = (PyTypeObject *)Py_NewRef(tensor);
    self->request = (PyTypeObject *)Py_NewRef(request);
    self->response = (PyTypeObject *)Py_NewRef(response);
    self->encode_data = Py_NewRef(encode_data);
    self->names = Py_BuildValue("(s)", "regions");
    PyObject *module = PyType_GetModule(type);
    self->pattern = (PyTypeObject *)PyType_FromModuleAndSpec(module, &pattern_specification, NULL);
    self->matched = (PyTypeObject *)PyType_FromModuleAndSpec(module, &matched_specification, NULL);
    if (self->names == NULL || self->pattern == NULL || self->matched == NULL ||
        find_slots(self->tensor, T_NAMES, self->of_tensor, __FILE__) < 0 ||
        find_slots(self->response, A_NAMES, self->of_response, __FILE__) < 0)
        Py_CLEAR(self);
    return (PyObject *)self;
}

static int traverse_patterns(Patterns *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(self->tensor);
    Py_VISIT(self->request);
    Py_VISIT(self->response);
    Py_VISIT(self->pattern);
    Py_VISIT(self->matched);
    Py_VISIT(self->encode_data);
    for (int i = 0; i < SETS * WAYS; i++)
        Py_VISIT(self->ways[i / WAYS][i % WAYS]);
    return 0;
}

static int clear_patterns(Patterns *self)
{
    for (int i = 0; i < SETS * WAYS; i++)
        Py_CLEAR(self->ways[i / WAYS][i % WAYS]);
    return 0;
}

static void delete_patterns(Patterns *self)
{
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    clear_patterns(self);
    Py_XDECREF(self->tensor);
    Py_XDECREF(self->request);
    Py_XDECREF(self->response);
    Py_XDECREF(self->pattern);
    Py_XDECREF(self->matched);
    Py_XDECREF(self->encode_data);
    Py_XDECREF(self->names);
    type->tp_free(self);
    Py_DECREF(type);
}

static PyMethodDef methods[] = {
    {"add", (PyCFunction)add, METH_VARARGS, "Recognise requests like this one."},
    {"wants", (PyCFunction)wants, METH_O, "Return whether a request is to be learned."},
    {"match", (PyCFunction)(void (*)(void))match, METH_FASTCALL, "Return the request that these bytes are."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot slots[] = {
    {Py_tp_new, new_patterns},
    {Py_tp_traverse, traverse_patterns},
    {Py_tp_clear, clear_patterns},
    {Py_tp_dealloc, delete_patterns},
    {Py_tp_methods, methods},
    {0, NULL},
};

static PyType_Spec specification = {
    .name = "app.native.extension.Patterns",
    .basicsize = sizeof(Patterns),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = slots,
};

int add_http_patterns(PyObject *module)
{
    PyObject *type = PyType_FromModuleAndSpec(module, &specification, NULL);
    int added = type == NULL ? -1 : PyModule_AddType(module, (PyTypeObject *)type);
    Py_XDECREF(type);
    return added;
}
