/* The server's part of a module's commands: these look for their key and reply, and nothing else. The benchmark loads them
   beside Sluice, to tell what no module could save.

   FLOOR.LOOK key [argument ...]   looks for the key, replies with an integer
   FLOOR.WRITE key [argument ...]  opens it for writing, replicates itself, replies with an integer
   FLOOR.FIVE key [argument ...]   the same with five integers
   FLOOR.FETCH key [argument ...]  looks for the key, replies with a word, 128 bytes and an integer */

#include <string.h>

typedef struct Context Context;
typedef struct String String;
typedef struct Key Key;
typedef int (*Command)(Context *, String **, int);

static int (*GetApi)(const char *, void *);
static int (*SetModuleAttribs)(Context *, const char *, int, int);
static int (*CreateCommand)(Context *, const char *, Command, const char *, int, int, int);
static Key *(*OpenKey)(Context *, String *, int);
static void (*CloseKey)(Key *);
static int (*KeyType)(Key *);
static int (*ReplicateVerbatim)(Context *);
static int (*SignalModifiedKey)(Context *, String *);
static int (*ReplyWithLongLong)(Context *, long long);
static int (*ReplyWithArray)(Context *, long);
static int (*ReplyWithStringBuffer)(Context *, const char *, size_t);

enum { OK = 0, FAILED = 1, READ = 1, WRITE = 2 };

static char value[128];

static void write_key(Context *ctx, String *name)
{
    Key *key = OpenKey(ctx, name, READ | WRITE);
    KeyType(key);
    CloseKey(key);
    ReplicateVerbatim(ctx);
    SignalModifiedKey(ctx, name);
}

static void look_at_key(Context *ctx, String *name)
{
    Key *key = OpenKey(ctx, name, READ);
    KeyType(key);
    CloseKey(key);
}

static int reply_looked(Context *ctx, String **argv, int argc)
{
    (void)argc;
    look_at_key(ctx, argv[1]);
    return ReplyWithLongLong(ctx, 1);
}

static int reply_written(Context *ctx, String **argv, int argc)
{
    (void)argc;
    write_key(ctx, argv[1]);
    return ReplyWithLongLong(ctx, 1000000);
}

static int reply_five(Context *ctx, String **argv, int argc)
{
    (void)argc;
    write_key(ctx, argv[1]);
    ReplyWithArray(ctx, 5);
    ReplyWithLongLong(ctx, 0);
    ReplyWithLongLong(ctx, 1000000);
    ReplyWithLongLong(ctx, 999999);
    ReplyWithLongLong(ctx, -1);
    return ReplyWithLongLong(ctx, 60000);
}

static int reply_fetch(Context *ctx, String **argv, int argc)
{
    (void)argc;
    look_at_key(ctx, argv[1]);
    ReplyWithArray(ctx, 3);
    ReplyWithStringBuffer(ctx, "HIT", 3);
    ReplyWithStringBuffer(ctx, value, sizeof value);
    return ReplyWithLongLong(ctx, 3600000);
}

static int all_found(void)
{
    const struct {
        const char *name;
        void *function;
    } wanted[] = {
        {"RedisModule_SetModuleAttribs", &SetModuleAttribs},
        {"RedisModule_CreateCommand", &CreateCommand},
        {"RedisModule_OpenKey", &OpenKey},
        {"RedisModule_CloseKey", &CloseKey},
        {"RedisModule_KeyType", &KeyType},
        {"RedisModule_ReplicateVerbatim", &ReplicateVerbatim},
        {"RedisModule_SignalModifiedKey", &SignalModifiedKey},
        {"RedisModule_ReplyWithLongLong", &ReplyWithLongLong},
        {"RedisModule_ReplyWithArray", &ReplyWithArray},
        {"RedisModule_ReplyWithStringBuffer", &ReplyWithStringBuffer},
    };
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++)
        if (GetApi(wanted[i].name, wanted[i].function) != OK)
            return 0;
    return 1;
}

/* What the server calls when it loads the module. A context begins with the function that finds all others. */
int RedisModule_OnLoad(Context *ctx, String **argv, int argc)
{
    (void)argv, (void)argc;
    memcpy(&GetApi, ctx, sizeof GetApi);
    memset(value, 'v', sizeof value);
    if (!all_found())
        return FAILED;
    SetModuleAttribs(ctx, "floor", 1, 1);
    if (CreateCommand(ctx, "floor.look", reply_looked, "readonly fast", 1, 1, 1) != OK ||
        CreateCommand(ctx, "floor.write", reply_written, "write deny-oom fast", 1, 1, 1) != OK ||
        CreateCommand(ctx, "floor.five", reply_five, "write deny-oom fast", 1, 1, 1) != OK ||
        CreateCommand(ctx, "floor.fetch", reply_fetch, "readonly fast", 1, 1, 1) != OK)
        return FAILED;
    return OK;
}
