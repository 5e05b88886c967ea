/* A module that listens to keyspace events and calls back: at each event of a key, it asks Sluice about that key, and keeps
   the reply. `listener.replies` returns a line for each reply, `event key command reply`, and forgets them.

   After `listener.beside on`, it also asks about the lock `beside:held` and writes keys of all families, at each event, until
   `listener.beside off`. After `listener.run <event> <command> <argument> ...`, it runs this command at the next such event, and then a
   writing command of Sluice. */

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

enum {
    GENERIC = 1 << 2,
    EXPIRED = 1 << 8,
    KEY_MISS = 1 << 11,
    MODULE = 1 << 13,
    NEW = 1 << 14,
    REPLY_ERROR = 1,
    REPLY_NULL = 4,
    MOST = 2000,
    MOST_ARGUMENTS = 8
};

static char lines[MOST][256];
static long kept;
static int asks_beside;
static char awaited_event[64], argument[MOST_ARGUMENTS][64];
static int arguments;

static void keep(const char *event, const char *name, int name_length, const char *command, Reply *reply)
{
    const char *text = "none";
    size_t length = 4;
    if (reply && CallReplyType(reply) == REPLY_ERROR)
        text = CallReplyStringPtr(reply, &length);
    else if (reply && CallReplyType(reply) == REPLY_NULL)
        text = "nil", length = 3;
    else if (reply)
        text = "reply", length = 5;
    if (kept < MOST)
        snprintf(lines[kept++], sizeof lines[0], "%s %.*s %s %.*s", event, name_length, name, command, (int)length, text);
    if (reply)
        FreeCallReply(reply);
}

/* Asks about a lock that is held, and writes keys of all families. */
static void ask_beside(Context *ctx, const char *event)
{
    static const char *const commands[][5] = {
        {"LOCK.INFO", "beside:held"},
        {"LOCK.ACQUIRE", "beside:lock", "listener"},
        {"LOCK.RELEASE", "beside:lock", "listener"},
        {"SEM.ACQUIRE", "beside:sem", "listener", "LIMIT", "9"},
        {"SEM.RELEASE", "beside:sem", "listener"},
        {"LOCK.GUARD", "beside:guard", "1"},
        {"STOCK.SET", "beside:stock", "9", "EVENTS", "beside:events"},
        {"STOCK.DEDUCT", "beside:stock", "1"},
        {"BF.ADD", "beside:bloom", "item"},
        {"CF.ADD", "beside:cuckoo", "item"},
        {"CF.DEL", "beside:cuckoo", "item"},
        {"CACHE.FETCH", "beside:cached", "LEASE", "600000"},
        {"CACHE.SET", "beside:cached", "value", "PX", "600000"},
        {"CACHE.DEL", "beside:cached"},
        {"RATE.GCRA", "beside:limit", "9", "9", "600000"},
        {"ONCE.BEGIN", "beside:work", "LEASE", "600000"},
        {"DELAY.SET", "beside:delay", "STREAM", "beside:due"},
        {"DELAY.CANCEL", "beside:delay", "id"},
    };
    static const char *const formats[] = {"", "", "c", "cc", "ccc", "cccc"};
    for (size_t i = 0; i < sizeof commands / sizeof commands[0]; i++) {
        const char *const *part = commands[i];
        int parts = 1;
        while (parts < 5 && part[parts])
            parts++;
        Reply *reply = Call(ctx, part[0], formats[parts], part[1], part[2], part[3], part[4]);
        keep(event, part[1], (int)strlen(part[1]), part[0], reply);
    }
}

static void ask(Context *ctx, const char *event, String *key, const char *command, const char *format)
{
    size_t length;
    const char *name = StringPtrLen(key, &length);
    keep(event, name, (int)length, command, Call(ctx, command, format, key, "0"));
}

static int on_event(Context *ctx, int class, const char *event, String *key)
{
    static const char *const families[][3] = {
        {"lock.", "LOCK.INFO", "s"}, {"sem.", "SEM.INFO", "s"},       {"stock.", "STOCK.INFO", "s"},
        {"bf.", "BF.INFO", "s"},     {"cf.", "CF.INFO", "s"},         {"cache.", "CACHE.INFO", "s"},
        {"rate.", "TYPE", "s"},      {"once.", "ONCE.INFO", "s"},      {"rate.", "RATE.REFUND", "sc"},  {"cl.", "RATE.REFUND", "sc"},
    };
    size_t length;
    /* Not at the events of its own commands. */
    if (!strncmp(StringPtrLen(key, &length), "beside:", 7))
        return 0;
    for (size_t i = 0; class == MODULE && i < sizeof families / sizeof families[0]; i++)
        if (!strncmp(event, families[i][0], strlen(families[i][0])) && strcmp(event, "rate.once"))
            ask(ctx, event, key, families[i][1], families[i][2]);
    /* The key is gone. */
    if (!strcmp(event, "del") || !strcmp(event, "expired")) {
        ask(ctx, event, key, "LOCK.INFO", "s");
        ask(ctx, event, key, "STOCK.INFO", "s");
        ask(ctx, event, key, "CACHE.INFO", "s");
    }
    if (*awaited_event && !strcmp(event, awaited_event)) {
        static const char *const formats[] = {"", "", "c", "cc", "ccc", "cccc", "ccccc", "cccccc", "ccccccc"};
        *awaited_event = 0;
        Reply *reply = Call(ctx, argument[0], formats[arguments], argument[1], argument[2], argument[3], argument[4],
                            argument[5], argument[6], argument[7]);
        keep(event, argument[1], (int)strlen(argument[1]), argument[0], reply);
        reply = Call(ctx, "LOCK.ACQUIRE", "cc", "beside:after", "listener");
        if (reply)
            FreeCallReply(reply);
    }
    if (asks_beside)
        ask_beside(ctx, event);
    return 0;
}

static int beside(Context *ctx, String **argv, int argc)
{
    size_t length;
    if (argc != 2)
        return 1;
    asks_beside = !strcmp(StringPtrLen(argv[1], &length), "on");
    return ReplyWithCString(ctx, "OK");
}

static int run(Context *ctx, String **argv, int argc)
{
    size_t length;
    if (argc < 4 || argc > 2 + MOST_ARGUMENTS)
        return 1;
    snprintf(awaited_event, sizeof awaited_event, "%s", StringPtrLen(argv[1], &length));
    for (arguments = 0; arguments < argc - 2; arguments++)
        snprintf(argument[arguments], sizeof argument[0], "%s", StringPtrLen(argv[2 + arguments], &length));
    return ReplyWithCString(ctx, "OK");
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
    if (SubscribeToKeyspaceEvents(ctx, MODULE | GENERIC | EXPIRED | KEY_MISS | NEW, on_event))
        return 1;
    if (CreateCommand(ctx, "listener.beside", beside, "readonly", 0, 0, 0) ||
        CreateCommand(ctx, "listener.run", run, "readonly", 0, 0, 0))
        return 1;
    return CreateCommand(ctx, "listener.replies", replies, "readonly", 0, 0, 0);
}
