/* A module that listens to keyspace events and calls back: at each event of a key, it asks Sluice about that key, and keeps
   the reply. `listener.replies` returns a line for each reply, `event key command reply`, and forgets them. */

#include <stdio.h>
#include <string.h>

typedef struct Context Context;
typedef struct String String;
typedef struct Reply Reply;

static int (*SetModuleAttribs)(Context *, const char *, int, int);
static int (*CreateCommand)(Context *, const char *, int (*)(Context *, String **, int), const char *, int, int, int);
static int (*SubscribeToKeyspaceEvents)(Context *, int, int (*)(Context *, int, const char *, String *));
static Reply *(*Call)(Context *, const char *, const char *, ...);
static int (*CallReplyType)(Reply *);
static const char *(*CallReplyStringPtr)(Reply *, size_t *);
static void (*FreeCallReply)(Reply *);
static const char *(*StringPtrLen)(const String *, size_t *);
static int (*ReplyWithArray)(Context *, long);
static int (*ReplyWithCString)(Context *, const char *);

enum { GENERIC = 1 << 2, EXPIRED = 1 << 8, MODULE = 1 << 13, REPLY_ERROR = 1, REPLY_NULL = 4, MOST = 2000 };

static char lines[MOST][256];
static long kept;

static void ask(Context *ctx, const char *event, String *key, const char *command, const char *format)
{
    Reply *reply = Call(ctx, command, format, key, "0");
    const char *text = "none";
    size_t length = 4;
    if (reply && CallReplyType(reply) == REPLY_ERROR)
        text = CallReplyStringPtr(reply, &length);
    else if (reply && CallReplyType(reply) == REPLY_NULL)
        text = "nil", length = 3;
    else if (reply)
        text = "reply", length = 5;
    size_t key_length;
    const char *name = StringPtrLen(key, &key_length);
    if (kept < MOST)
        snprintf(lines[kept++], sizeof lines[0], "%s %.*s %s %.*s", event, (int)key_length, name, command, (int)length, text);
    if (reply)
        FreeCallReply(reply);
}

static int on_event(Context *ctx, int class, const char *event, String *key)
{
    static const char *const families[][3] = {
        {"lock.", "LOCK.INFO", "s"}, {"sem.", "SEM.INFO", "s"},       {"stock.", "STOCK.INFO", "s"},
        {"bf.", "BF.INFO", "s"},     {"cf.", "CF.INFO", "s"},         {"cache.", "CACHE.INFO", "s"},
        {"rate.", "TYPE", "s"},      {"once.", "ONCE.INFO", "s"},      {"rate.", "RATE.REFUND", "sc"},  {"cl.", "RATE.REFUND", "sc"},
    };
    for (size_t i = 0; class == MODULE && i < sizeof families / sizeof families[0]; i++)
        if (!strncmp(event, families[i][0], strlen(families[i][0])) && strcmp(event, "rate.once"))
            ask(ctx, event, key, families[i][1], families[i][2]);
    /* The key is gone. */
    if (!strcmp(event, "del") || !strcmp(event, "expired")) {
        ask(ctx, event, key, "LOCK.INFO", "s");
        ask(ctx, event, key, "STOCK.INFO", "s");
        ask(ctx, event, key, "CACHE.INFO", "s");
    }
    return 0;
}

static int replies(Context *ctx, String **argv, int argc)
{
    (void)argv, (void)argc;
    ReplyWithArray(ctx, kept);
    for (long i = 0; i < kept; i++)
        ReplyWithCString(ctx, lines[i]);
    kept = 0;
    return 0;
}

int RedisModule_OnLoad(Context *ctx, String **argv, int argc)
{
    int (*get)(const char *, void *) = ((int (**)(const char *, void *))ctx)[0];
    (void)argv, (void)argc;
    const struct {
        const char *name;
        void *function;
    } needed[] = {
        {"RedisModule_SetModuleAttribs", &SetModuleAttribs},
        {"RedisModule_CreateCommand", &CreateCommand},
        {"RedisModule_SubscribeToKeyspaceEvents", &SubscribeToKeyspaceEvents},
        {"RedisModule_Call", &Call},
        {"RedisModule_CallReplyType", &CallReplyType},
        {"RedisModule_CallReplyStringPtr", &CallReplyStringPtr},
        {"RedisModule_FreeCallReply", &FreeCallReply},
        {"RedisModule_StringPtrLen", &StringPtrLen},
        {"RedisModule_ReplyWithArray", &ReplyWithArray},
        {"RedisModule_ReplyWithCString", &ReplyWithCString},
    };
    for (size_t i = 0; i < sizeof needed / sizeof needed[0]; i++)
        if (get(needed[i].name, needed[i].function))
            return 1;
    SetModuleAttribs(ctx, "listener", 1, 1);
    if (SubscribeToKeyspaceEvents(ctx, MODULE | GENERIC | EXPIRED, on_event))
        return 1;
    return CreateCommand(ctx, "listener.replies", replies, "readonly", 0, 0, 0);
}
