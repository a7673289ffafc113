/* The head of a request over HTTP/1.1, read in full: what tells how the request is to be read, and that the rest is
well-formed. */
#include "http_requests.h"

#include <string.h>

static int is_token(unsigned char character)
{
    static const char others[] = "!#$%&'*+-.^_`|~";
    return (character >= '0' && character <= '9') || ((character | ' ') >= 'a' && (character | ' ') <= 'z') ||
           (character != '\0' && strchr(others, character) != NULL);
}

static int is_named(const char *name, size_t size, const char *word, size_t word_size)
{
    if (size != word_size)
        return 0;
    for (size_t i = 0; i < size; i++) {
        char lower = name[i] >= 'A' && name[i] <= 'Z' ? (char)(name[i] | ' ') : name[i];
        if (lower != word[i])
            return 0;
    }
    return 1;
}

#define IS(word) is_named(name, size, word, sizeof(word) - 1)

/* Read a length; 0 for what is none, or a second one. */
static int read_length(const char *at, const char *end, Py_ssize_t *length)
{
    Py_ssize_t value = 0;
    if (*length >= 0 || at == end || end - at > 10)
        return 0;
    for (; at < end; at++) {
        if (*at < '0' || *at > '9')
            return 0;
        value = value * 10 + (*at - '0');
    }
    *length = value;
    return 1;
}

static int add_to_key(struct head *head, const char *start, const char *end)
{
    size_t size = (size_t)(end - start);
    if (size > MAX_KEY - head->key_size)
        return 0;
    memcpy(head->key + head->key_size, start, size);
    head->key_size += size;
    return 1;
}

/* Whether a header is one that requests are told apart by: what decides about the connection or the coding of a body,
and those that the server was told to ask for. */
static int tells_apart(const char *name, size_t size, PyObject *others)
{
    if (IS("accept-encoding") || IS("connection") || IS("content-encoding") || IS("expect") || IS("proxy-connection") ||
        IS("transfer-encoding") || IS("upgrade"))
        return 1;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(others); i++) {
        PyObject *other = PyTuple_GET_ITEM(others, i);
        if (is_named(name, size, PyBytes_AS_STRING(other), (size_t)PyBytes_GET_SIZE(other)))
            return 1;
    }
    return 0;
}

/* Read the line of a header; return its end, NULL where it is not well-formed. */
static const char *read_line(const char *at, const char *end, PyObject *others, struct head *head)
{
    const char *name = at;
    while (at < end && is_token((unsigned char)*at))
        at++;
    size_t size = (size_t)(at - name);
    if (size == 0 || at == end || *at != ':')
        return NULL;
    do
        at++;
    while (at < end && (*at == ' ' || *at == '\t'));
    const char *value = at;
    while (at < end && ((unsigned char)*at >= ' ' || *at == '\t') && *at != 0x7f)
        at++;
    if (end - at < 2 || at[0] != '\r' || at[1] != '\n')
        return NULL;
    int fits = IS("content-length")                   ? read_length(value, at, &head->content_length)
               : IS("inference-header-content-length") ? read_length(value, at, &head->json_length)
               : tells_apart(name, size, others)       ? add_to_key(head, name, at + 2)
                                                       : 1;
    return fits ? at + 2 : NULL;
}

int read_head(const char *data, Py_ssize_t size, PyObject *others, struct head *head)
{
    const char *end = data + (size < MAX_HEAD ? size : MAX_HEAD), *at = memchr(data, '\n', (size_t)(end - data));
    head->content_length = head->json_length = -1;
    head->key_size = 0;
    if (at == NULL || !add_to_key(head, data, ++at))
        return 0;
    while (at != NULL && end - at >= 2 && !(at[0] == '\r' && at[1] == '\n'))
        at = read_line(at, end, others, head);
    head->size = at == NULL ? 0 : at + 2 - data;
    return at != NULL && end - at >= 2;
}
