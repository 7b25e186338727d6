/* jsmn: text that is known to be JSON -> a flat array of tokens with parent links.
 *
 * Vendored from jsmn 1.1.0 (https://github.com/zserge/jsmn) under the licence below. Changes:
 * names are prefixed, strict mode and parent links are always on, a lone primitive may end with the
 * text, counting without tokens is gone. Not safe alone: it accepts much that is not JSON, and its
 * time grows with depth; json.h scans the text first. */
/*
 * MIT License
 *
 * Copyright (c) 2010 Serge Zaitsev
 *
 * Permission is hereby granted, free of charge, to any person obtaining a copy
 * of this software and associated documentation files (the "Software"), to deal
 * in the Software without restriction, including without limitation the rights
 * to use, copy, modify, merge, publish, distribute, sublicense, and/or sell
 * copies of the Software, and to permit persons to whom the Software is
 * furnished to do so, subject to the following conditions:
 *
 * The above copyright notice and this permission notice shall be included in
 * all copies or substantial portions of the Software.
 *
 * THE SOFTWARE IS PROVIDED "AS IS", WITHOUT WARRANTY OF ANY KIND, EXPRESS OR
 * IMPLIED, INCLUDING BUT NOT LIMITED TO THE WARRANTIES OF MERCHANTABILITY,
 * FITNESS FOR A PARTICULAR PURPOSE AND NONINFRINGEMENT. IN NO EVENT SHALL THE
 * AUTHORS OR COPYRIGHT HOLDERS BE LIABLE FOR ANY CLAIM, DAMAGES OR OTHER
 * LIABILITY, WHETHER IN AN ACTION OF CONTRACT, TORT OR OTHERWISE, ARISING FROM,
 * OUT OF OR IN CONNECTION WITH THE SOFTWARE OR THE USE OR OTHER DEALINGS IN THE
 * SOFTWARE.
 */
#pragma once
#include "base/base.h"

typedef enum damacy__jsmn_type {
    DAMACY__JSMN_UNDEFINED = 0,
    DAMACY__JSMN_OBJECT = 1,
    DAMACY__JSMN_ARRAY = 2,
    DAMACY__JSMN_STRING = 3,
    DAMACY__JSMN_PRIMITIVE = 4 /* number, true, false, null */
} damacy__jsmn_type;

/* Why damacy__jsmn_parse failed. */
enum {
    DAMACY__JSMN_NOMEM = -1, /* not enough tokens */
    DAMACY__JSMN_INVAL = -2, /* invalid character */
    DAMACY__JSMN_PART = -3   /* the text ends too early */
};

/* One value or key. Strings: the text between the quotes. The value of a key is its only child. */
typedef struct damacy__jsmn_token {
    damacy__jsmn_type type;
    int32_t start;  /* byte offset */
    int32_t end;    /* byte offset of what follows */
    int32_t size;   /* children */
    int32_t parent; /* token; -1: none */
} damacy__jsmn_token;

typedef struct damacy__jsmn {
    uint32_t pos;     /* offset in the text */
    uint32_t toknext; /* next token to fill */
    int32_t toksuper; /* the enclosing token; -1: none */
} damacy__jsmn;

static int32_t damacy__jsmn_parse(damacy__jsmn* parser, const char* text, size_t len,
                                  damacy__jsmn_token* tokens, uint32_t n_tokens);

/* The next unused token, or NULL. */
static damacy__jsmn_token* damacy__jsmn_take(damacy__jsmn* parser, damacy__jsmn_token* tokens,
                                             uint32_t n_tokens)
{
    damacy__jsmn_token* token;

    if (parser->toknext >= n_tokens) {
        return NULL;
    }
    token = &tokens[parser->toknext++];
    token->start = token->end = -1;
    token->size = 0;
    token->parent = -1;
    return token;
}

static int32_t damacy__jsmn_primitive(damacy__jsmn* parser, const char* text, size_t len,
                                      damacy__jsmn_token* tokens, uint32_t n_tokens)
{
    const uint32_t start = parser->pos;
    damacy__jsmn_token* token;

    for (; parser->pos < len; parser->pos++) {
        const char c = text[parser->pos];
        if (c == '\t' || c == '\r' || c == '\n' || c == ' ' || c == ',' || c == ']' || c == '}') {
            break;
        }
        if (c < 32 || c == 127) {
            parser->pos = start;
            return DAMACY__JSMN_INVAL;
        }
    }
    token = damacy__jsmn_take(parser, tokens, n_tokens);
    if (!token) {
        parser->pos = start;
        return DAMACY__JSMN_NOMEM;
    }
    token->type = DAMACY__JSMN_PRIMITIVE;
    token->start = (int32_t)start;
    token->end = (int32_t)parser->pos;
    token->parent = parser->toksuper;
    parser->pos--;
    return 0;
}

static int32_t damacy__jsmn_string(damacy__jsmn* parser, const char* text, size_t len,
                                   damacy__jsmn_token* tokens, uint32_t n_tokens)
{
    const uint32_t start = parser->pos;

    for (parser->pos++; parser->pos < len; parser->pos++) {
        const char c = text[parser->pos];
        if (c == '"') {
            damacy__jsmn_token* token = damacy__jsmn_take(parser, tokens, n_tokens);
            if (!token) {
                parser->pos = start;
                return DAMACY__JSMN_NOMEM;
            }
            token->type = DAMACY__JSMN_STRING;
            token->start = (int32_t)(start + 1);
            token->end = (int32_t)parser->pos;
            token->parent = parser->toksuper;
            return 0;
        }
        if (c == '\\' && parser->pos + 1 < len) {
            parser->pos++; /* whatever is escaped: the scan has seen it */
        }
    }
    parser->pos = start;
    return DAMACY__JSMN_PART;
}

static int32_t damacy__jsmn_open(damacy__jsmn* parser, char c, damacy__jsmn_token* tokens,
                                 uint32_t n_tokens)
{
    damacy__jsmn_token* token = damacy__jsmn_take(parser, tokens, n_tokens);

    if (!token) {
        return DAMACY__JSMN_NOMEM;
    }
    if (parser->toksuper != -1) {
        damacy__jsmn_token* super = &tokens[parser->toksuper];
        if (super->type == DAMACY__JSMN_OBJECT) {
            return DAMACY__JSMN_INVAL; /* an object or array cannot be a key */
        }
        super->size++;
        token->parent = parser->toksuper;
    }
    token->type = c == '{' ? DAMACY__JSMN_OBJECT : DAMACY__JSMN_ARRAY;
    token->start = (int32_t)parser->pos;
    parser->toksuper = (int32_t)parser->toknext - 1;
    return 0;
}

static int32_t damacy__jsmn_close(damacy__jsmn* parser, char c, damacy__jsmn_token* tokens)
{
    const damacy__jsmn_type type = c == '}' ? DAMACY__JSMN_OBJECT : DAMACY__JSMN_ARRAY;
    damacy__jsmn_token* token;

    if (parser->toknext < 1) {
        return DAMACY__JSMN_INVAL;
    }
    token = &tokens[parser->toknext - 1];
    while (token->start == -1 || token->end != -1) { /* at most as many steps as the depth */
        if (token->parent == -1) {
            return DAMACY__JSMN_INVAL;
        }
        token = &tokens[token->parent];
    }
    if (token->type != type) {
        return DAMACY__JSMN_INVAL;
    }
    token->end = (int32_t)parser->pos + 1;
    parser->toksuper = token->parent;
    return 0;
}

/* A string, or a primitive, which cannot be a key. */
static int32_t damacy__jsmn_scalar(damacy__jsmn* parser, const char* text, size_t len,
                                   damacy__jsmn_token* tokens, uint32_t n_tokens)
{
    int32_t result;

    if (text[parser->pos] == '"') {
        result = damacy__jsmn_string(parser, text, len, tokens, n_tokens);
    } else {
        if (parser->toksuper != -1) {
            const damacy__jsmn_token* super = &tokens[parser->toksuper];
            if (super->type == DAMACY__JSMN_OBJECT ||
                (super->type == DAMACY__JSMN_STRING && super->size != 0)) {
                return DAMACY__JSMN_INVAL;
            }
        }
        result = damacy__jsmn_primitive(parser, text, len, tokens, n_tokens);
    }
    if (result == 0 && parser->toksuper != -1) {
        tokens[parser->toksuper].size++;
    }
    return result;
}

/* Fills tokens in the order of the text. Returns their number, or one of the errors above. parser
 * is zeroed but for toksuper = -1. len fits int32_t. */
static int32_t damacy__jsmn_parse(damacy__jsmn* parser, const char* text, size_t len,
                                  damacy__jsmn_token* tokens, uint32_t n_tokens)
{
    for (; parser->pos < len; parser->pos++) {
        const char c = text[parser->pos];
        int32_t result = 0;

        switch (c) {
        case '{':
        case '[':
            result = damacy__jsmn_open(parser, c, tokens, n_tokens);
            break;
        case '}':
        case ']':
            result = damacy__jsmn_close(parser, c, tokens);
            break;
        case '\t':
        case '\r':
        case '\n':
        case ' ':
            break;
        case ':':
            parser->toksuper = (int32_t)parser->toknext - 1;
            break;
        case ',':
            if (parser->toksuper != -1 && tokens[parser->toksuper].type != DAMACY__JSMN_ARRAY &&
                tokens[parser->toksuper].type != DAMACY__JSMN_OBJECT) {
                parser->toksuper = tokens[parser->toksuper].parent;
            }
            break;
        default:
            result = damacy__jsmn_scalar(parser, text, len, tokens, n_tokens);
        }
        if (result < 0) {
            return result;
        }
    }
    for (uint32_t i = parser->toknext; i-- > 0;) {
        if (tokens[i].start != -1 && tokens[i].end == -1) {
            return DAMACY__JSMN_PART; /* an object or array that is not closed */
        }
    }
    return (int32_t)parser->toknext;
}
