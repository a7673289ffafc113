/* The type `HeaderDecoder`: decodes the header blocks of one connection (HPACK, RFC 7541) to `CallHead`s.

It takes the place of `HeaderReader` and `read_head`: the dynamic table of a connection is here or there, never in both.
Python says what is wrong with a block. */
#include "calls.h"

#include <string.h>

enum { TABLE_BYTES = 4096, ENTRY_BYTES = 32, MOST_ENTRIES = TABLE_BYTES / ENTRY_BYTES };
enum { WHOLE = 1, SYMBOL = 2, FAILED = 4, STATE_SIZE = 3 }; /* of the table `huffman` */

typedef struct {
    PyObject_HEAD
    UnaryCalls *calls;
    PyObject *entries[MOST_ENTRIES]; /* the dynamic table, a ring; entries are pairs of str */
    unsigned newest, count;
    Py_ssize_t nbytes, limit;
} HeaderDecoder;

/* What is left of a block. Of the functions that read from it, each returns NULL, or a negative number, for what is
malformed, or with an error. */
struct block {
    const unsigned char *at, *end;
};

static int64_t read_integer(struct block *block, int bits)
{
    int64_t most = (1 << bits) - 1, number = *block->at++ & most;
    if (number < most)
        return number;
    for (int shift = 0; shift < 35 && block->at < block->end; shift += 7) {
        unsigned char byte = *block->at++;
        number += (int64_t)(byte & 0x7f) << shift;
        if (byte < 0x80)
            return number;
    }
    return -1;
}

static PyObject *decode_huffman(const HeaderDecoder *self, const unsigned char *bytes, Py_ssize_t size)
{
    const unsigned char *states = (const unsigned char *)PyBytes_AS_STRING(self->calls->huffman);
    unsigned char *text = PyMem_Malloc(2 * (size_t)size + 1);
    Py_ssize_t length = 0;
    int state = 0, flags = WHOLE;
    for (Py_ssize_t i = 0; text != NULL && i < 2 * size && !(flags & FAILED); i++) {
        const unsigned char *next = states + STATE_SIZE * (16 * state + (i & 1 ? bytes[i / 2] & 0xf : bytes[i / 2] >> 4));
        state = next[0];
        flags = next[1];
        if (flags & SYMBOL)
            text[length++] = next[2];
    }
    PyObject *decoded = NULL;
    if (text == NULL)
        PyErr_NoMemory();
    else if (flags & WHOLE && !(flags & FAILED))
        decoded = PyUnicode_DecodeLatin1((const char *)text, length, NULL);
    PyMem_Free(text);
    return decoded;
}

static PyObject *read_text(const HeaderDecoder *self, struct block *block)
{
    if (block->at == block->end)
        return NULL;
    int is_coded = *block->at & 0x80;
    int64_t size = read_integer(block, 7);
    const unsigned char *bytes = block->at;
    if (size < 0 || size > block->end - bytes)
        return NULL;
    block->at += size;
    return is_coded ? decode_huffman(self, bytes, size) : PyUnicode_DecodeLatin1((const char *)bytes, size, NULL);
}

/* Return an entry of the static or the dynamic table, borrowed. */
static PyObject *find_entry(const HeaderDecoder *self, int64_t index)
{
    PyObject *table = self->calls->static_table;
    int64_t fixed = PyTuple_GET_SIZE(table);
    if (index < 1 || index > fixed + self->count)
        return NULL;
    return index <= fixed ? PyTuple_GET_ITEM(table, index - 1)
                          : self->entries[(self->newest - (unsigned)(index - fixed - 1)) % MOST_ENTRIES];
}

static Py_ssize_t entry_size(PyObject *pair)
{
    return ENTRY_BYTES + PyUnicode_GET_LENGTH(PyTuple_GET_ITEM(pair, 0)) + PyUnicode_GET_LENGTH(PyTuple_GET_ITEM(pair, 1));
}

static void shrink(HeaderDecoder *self, Py_ssize_t limit)
{
    while (self->nbytes > limit) {
        PyObject **oldest = &self->entries[(self->newest - --self->count) % MOST_ENTRIES];
        self->nbytes -= entry_size(*oldest);
        Py_CLEAR(*oldest);
    }
}

/* Add an entry; one that is too large empties the table. */
static void add_entry(HeaderDecoder *self, PyObject *pair)
{
    Py_ssize_t size = entry_size(pair);
    shrink(self, size > self->limit ? 0 : self->limit - size);
    if (size > self->limit)
        return;
    self->entries[++self->newest % MOST_ENTRIES] = Py_NewRef(pair);
    self->count++;
    self->nbytes += size;
}

/* Return the name and the value of a field, a new reference. */
static PyObject *read_field(HeaderDecoder *self, struct block *block)
{
    int first = *block->at;
    if (first & 0x80)
        return Py_XNewRef(find_entry(self, read_integer(block, 7)));
    int64_t index = read_integer(block, first & 0x40 ? 6 : 4);
    PyObject *entry = index ? find_entry(self, index) : NULL;
    PyObject *name = entry != NULL ? Py_NewRef(PyTuple_GET_ITEM(entry, 0)) : index ? NULL : read_text(self, block);
    PyObject *value = name == NULL ? NULL : read_text(self, block);
    PyObject *pair = value == NULL ? NULL : PyTuple_Pack(2, name, value);
    Py_XDECREF(name);
    Py_XDECREF(value);
    if (pair != NULL && first & 0x40)
        add_entry(self, pair);
    return pair;
}

/* Change the size of the table; return 0 for one that is malformed or too large. */
static int resize(HeaderDecoder *self, struct block *block)
{
    int64_t limit = read_integer(block, 5);
    if (limit < 0 || limit > TABLE_BYTES)
        return 0;
    self->limit = limit;
    shrink(self, limit);
    return 1;
}

/* What a call is, of the fields that say so: of several, the last one. */
struct found {
    PyObject *path, *encoding, *metadata;
    double timeout_s; /* -1: none */
    int is_post, is_grpc, accepts_gzip;
};

#define SIZE(word) ((Py_ssize_t)sizeof(word) - 1)
#define BEGINS(text, word) \
    (PyUnicode_GET_LENGTH(text) >= SIZE(word) && memcmp(PyUnicode_1BYTE_DATA(text), word, SIZE(word)) == 0)
#define IS(text, word) (PyUnicode_GET_LENGTH(text) == SIZE(word) && BEGINS(text, word))

static int is_binary(PyObject *name)
{
    Py_ssize_t start = PyUnicode_GET_LENGTH(name) - SIZE("-bin");
    return start >= 0 && memcmp(PyUnicode_1BYTE_DATA(name) + start, "-bin", SIZE("-bin")) == 0;
}

/* Read a `grpc-timeout`, in seconds; -1 where it is none. */
static double read_timeout(PyObject *text)
{
    static const char units[] = "HMSmun";
    static const double seconds[] = {3600.0, 60.0, 1.0, 1e-3, 1e-6, 1e-9};
    const unsigned char *digits = PyUnicode_1BYTE_DATA(text);
    Py_ssize_t size = PyUnicode_GET_LENGTH(text) - 1;
    const char *unit = size > 0 && size < 9 && digits[size] ? strchr(units, digits[size]) : NULL;
    long number = 0;
    for (Py_ssize_t i = 0; unit != NULL && i < size; i++) {
        if (digits[i] < '0' || digits[i] > '9')
            return -1;
        number = number * 10 + (digits[i] - '0');
    }
    return unit == NULL ? -1 : (double)number * seconds[unit - units];
}

static int add_metadata(const HeaderDecoder *self, struct found *found, PyObject *name, PyObject *pair)
{
    PyObject *entry = is_binary(name) ? PyObject_CallOneArg(self->calls->decode_metadata, pair) : Py_NewRef(pair);
    int added = entry == NULL ? -1 : PyList_Append(found->metadata, entry);
    Py_XDECREF(entry);
    return added;
}

/* Note a field; -1 with an error. */
static int note(const HeaderDecoder *self, struct found *found, PyObject *pair)
{
    PyObject *name = PyTuple_GET_ITEM(pair, 0), *value = PyTuple_GET_ITEM(pair, 1);
    if (IS(name, ":path"))
        Py_XSETREF(found->path, Py_NewRef(value));
    else if (IS(name, ":method"))
        found->is_post = IS(value, "POST");
    else if (IS(name, "content-type"))
        found->is_grpc = BEGINS(value, "application/grpc");
    else if (IS(name, "grpc-timeout"))
        found->timeout_s = read_timeout(value);
    else if (IS(name, "grpc-encoding"))
        Py_XSETREF(found->encoding, Py_NewRef(value));
    else if (IS(name, "grpc-accept-encoding"))
        found->accepts_gzip = PyUnicode_Contains(value, texts.gzip);
    return BEGINS(name, ":") || BEGINS(name, "grpc-") ? 0 : add_metadata(self, found, name, pair);
}

/* Read all fields; 0 for what is malformed, or too large, which is told; -1 with an error. */
static int read_fields(HeaderDecoder *self, struct block *block, struct found *found, int *is_large)
{
    Py_ssize_t size = 0;
    while (block->at < block->end) {
        if ((*block->at & 0xe0) == 0x20) {
            if (size || !resize(self, block))
                return 0;
            continue;
        }
        PyObject *pair = read_field(self, block);
        if (pair == NULL)
            return PyErr_Occurred() ? -1 : 0;
        size += entry_size(pair);
        *is_large = size > self->calls->max_header;
        int noted = *is_large ? 0 : note(self, found, pair);
        Py_DECREF(pair);
        if (*is_large || noted < 0)
            return noted;
    }
    return 1;
}

static PyObject *make_head(const HeaderDecoder *self, const struct found *found)
{
    PyObject *values[HEAD_FIELDS] = {
        [PATH] = found->path == NULL ? PyUnicode_New(0, 0) : Py_NewRef(found->path),
        [TIMEOUT_S] = found->timeout_s < 0 ? Py_NewRef(Py_None) : PyFloat_FromDouble(found->timeout_s),
        [ENCODING] = Py_NewRef(found->encoding == NULL ? texts.identity : found->encoding),
        [ACCEPTS_GZIP] = PyBool_FromLong(found->accepts_gzip),
        [METADATA] = PyList_AsTuple(found->metadata),
        [REFUSAL] = PyLong_FromLong(!found->is_post ? 405 : !found->is_grpc ? 415 : 0)};
    PyObject *head = PyErr_Occurred() ? NULL : self->calls->types[HEAD]->tp_alloc(self->calls->types[HEAD], HEAD_FIELDS);
    for (int i = 0; i < HEAD_FIELDS; i++) {
        if (head != NULL)
            PyTuple_SET_ITEM(head, i, values[i]);
        else
            Py_XDECREF(values[i]);
    }
    return head;
}

PyObject *read_block(PyObject *decoder, const unsigned char *bytes, Py_ssize_t size)
{
    HeaderDecoder *self = (HeaderDecoder *)decoder;
    struct block block = {bytes, bytes + size};
    struct found found = {.metadata = PyList_New(0), .timeout_s = -1};
    int is_large = 0, read = found.metadata == NULL ? -1 : read_fields(self, &block, &found, &is_large);
    PyObject *head = read > 0 ? make_head(self, &found) : NULL;
    if (read == 0)
        Py_XDECREF(PyObject_CallOneArg(self->calls->refuse, is_large ? Py_True : Py_False)); /* it raises */
    Py_XDECREF(found.path);
    Py_XDECREF(found.encoding);
    Py_XDECREF(found.metadata);
    return head;
}

static PyObject *read_bytes(PyObject *self, PyObject *block)
{
    if (!PyBytes_CheckExact(block)) {
        PyErr_SetString(PyExc_TypeError, "a block is bytes");
        return NULL;
    }
    return read_block(self, (const unsigned char *)PyBytes_AS_STRING(block), PyBytes_GET_SIZE(block));
}

PyObject *make_decoder(UnaryCalls *self, PyObject *Py_UNUSED(ignored))
{
    HeaderDecoder *decoder = (HeaderDecoder *)self->decoder_type->tp_alloc(self->decoder_type, 0);
    if (decoder != NULL) {
        decoder->calls = (UnaryCalls *)Py_NewRef(self);
        decoder->limit = TABLE_BYTES;
    }
    return (PyObject *)decoder;
}

static int traverse(HeaderDecoder *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(self->calls);
    return 0;
}

static void delete_decoder(HeaderDecoder *self)
{
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    shrink(self, 0);
    Py_XDECREF(self->calls);
    type->tp_free(self);
    Py_DECREF(type);
}

static PyMethodDef methods[] = {{"read", read_bytes, METH_O, NULL}, {NULL, NULL, 0, NULL}};

static PyType_Slot slots[] = {
    {Py_tp_dealloc, delete_decoder}, {Py_tp_traverse, traverse}, {Py_tp_methods, methods}, {0, NULL}};

static PyType_Spec spec = {
    .name = "app.native.extension.HeaderDecoder",
    .basicsize = sizeof(HeaderDecoder),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .slots = slots,
};

PyTypeObject *make_decoder_type(void)
{
    return (PyTypeObject *)PyType_FromSpec(&spec);
}
