/* The type `Messages`: where the fields of requests and responses are. */
#include "messages.h"

#include <stddef.h>

#include "structmember.h"

/* The slots that are used, of each type. */
static const char *const *const slot_names[TYPES] = {
    [TENSOR] = T_NAMES, [OUTPUT] = W_NAMES, [REQUEST] = Q_NAMES, [ANSWER] = A_NAMES};

/* Return where the instances of a type have a field; -1 with an error where it is no slot. */
static Py_ssize_t offset_of(PyTypeObject *type, PyObject *name)
{
    PyObject *member = PyObject_GetAttr((PyObject *)type, name);
    Py_ssize_t offset = -1;
    if (member == NULL && !PyErr_ExceptionMatches(PyExc_AttributeError))
        return -1;
    if (member != NULL && Py_IS_TYPE(member, &PyMemberDescr_Type) && PyType_IsSubtype(type, PyDescr_TYPE(member)) &&
        ((PyMemberDescrObject *)member)->d_member->type == T_OBJECT_EX)
        offset = ((PyMemberDescrObject *)member)->d_member->offset;
    else
        PyErr_Format(PyExc_TypeError, "%R has no slot '%U'", type, name);
    Py_XDECREF(member);
    return offset;
}

int find_slots(PyTypeObject *type, const char *const *names, Py_ssize_t *places, const char *file)
{
    for (; *names != NULL; names++, places++) {
        PyObject *name = PyUnicode_FromString(*names);
        *places = name == NULL ? -1 : offset_of(type, name);
        Py_XDECREF(name);
        if (*places >= 0)
            continue;
        if (PyErr_ExceptionMatches(PyExc_TypeError))
            PyErr_Format(PyExc_TypeError, "%R has no slot '%s', which %s uses: see app/native/slots.py", type, *names, file);
        return -1;
    }
    return 0;
}

static int bind(Messages *self, enum struct_type type, PyObject *given)
{
    self->types[type] = (PyTypeObject *)Py_NewRef(given);
    return slot_names[type] == NULL ? 0 : find_slots(self->types[type], slot_names[type], self->offsets[type], __FILE__);
}

static int bind_unset(struct unset *into, PyTypeObject *type, PyObject *names)
{
    into->count = PyTuple_GET_SIZE(names);
    if (into->count > UNSET) {
        PyErr_SetString(PyExc_ValueError, "too many fields");
        return -1;
    }
    for (Py_ssize_t i = 0; i < into->count; i++) {
        into->offsets[i] = offset_of(type, PyTuple_GET_ITEM(names, i));
        if (into->offsets[i] < 0)
            return -1;
    }
    return 0;
}

static PyObject *new_messages(PyTypeObject *type, PyObject *arguments, PyObject *names)
{
    static char *keywords[] = {"tensor",     "output",        "request",        "response", "place",       "encode_place",
                               "decode_place", "request_unset", "response_unset", "max_meta", "max_tensors", "in_meta",
                               "place_code", NULL};
    PyObject *types[TYPES], *encode_place, *decode_place, *request_unset, *response_unset;
    Py_ssize_t max_meta, max_tensors, in_meta, place_code;
    if (!PyArg_ParseTupleAndKeywords(arguments, names, "O!O!O!O!O!OOO!O!nnnn", keywords, &PyType_Type, &types[TENSOR],
                                     &PyType_Type, &types[OUTPUT], &PyType_Type, &types[REQUEST], &PyType_Type,
                                     &types[ANSWER], &PyType_Type, &types[PLACE], &encode_place, &decode_place,
                                     &PyTuple_Type, &request_unset, &PyTuple_Type, &response_unset, &max_meta,
                                     &max_tensors, &in_meta, &place_code))
        return NULL;
    Messages *self = (Messages *)type->tp_alloc(type, 0);
    if (self == NULL)
        return NULL;
    self->max_meta = max_meta;
    self->max_tensors = max_tensors;
    self->in_meta = in_meta;
    self->place_code = place_code;
    self->encode_place = Py_NewRef(encode_place);
    self->decode_place = Py_NewRef(decode_place);
    self->names = Py_BuildValue("(sss)", "deadline", "regions", "chain");
    int bound = self->names == NULL ? -1 : 0;
    for (int i = 0; i < TYPES && bound == 0; i++)
        bound = bind(self, i, types[i]);
    if (bound < 0 || bind_unset(&self->request, self->types[REQUEST], request_unset) < 0 ||
        bind_unset(&self->response, self->types[ANSWER], response_unset) < 0)
        Py_CLEAR(self);
    return (PyObject *)self;
}

static void delete_messages(Messages *self)
{
    PyTypeObject *type = Py_TYPE(self);
    for (int i = 0; i < TYPES; i++)
        Py_XDECREF(self->types[i]);
    Py_XDECREF(self->encode_place);
    Py_XDECREF(self->decode_place);
    Py_XDECREF(self->names);
    type->tp_free(self);
    Py_DECREF(type);
}

static PyMethodDef methods[] = {
    {"write_request", (PyCFunction)(void (*)(void))write_request, METH_FASTCALL, "Return an INFER frame."},
    {"write_response", (PyCFunction)(void (*)(void))write_response, METH_FASTCALL, "Return a RESPONSE frame."},
    {"read_request", (PyCFunction)(void (*)(void))read_request, METH_FASTCALL, "Read the meta of an INFER frame."},
    {"read_response", (PyCFunction)(void (*)(void))read_response, METH_FASTCALL, "Read the meta of a RESPONSE frame."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot slots[] = {
    {Py_tp_new, new_messages},
    {Py_tp_dealloc, delete_messages},
    {Py_tp_methods, methods},
    {0, NULL},
};

static PyType_Spec spec = {
    .name = "app.native.extension.Messages",
    .basicsize = sizeof(Messages),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = slots,
};

PyTypeObject *messages_type;

int add_messages(PyObject *module)
{
    return add_type(module, &spec, &messages_type);
}
