/* The server's part of a module's commands. Each command here takes the arguments of a command of Sluice, opens the same key,
   makes the same changes of the keyspace (a value appears or disappears, an expiry, a stream entry), replicates as much,
   signals the change and sends the same reply. It does nothing else: it reads no argument and keeps no state.
   Commands replicate as they came. Those whose result depends on the clock or on a new number cannot: they replicate an effect.
   The benchmark loads this module beside Sluice. No module can be cheaper. */

#include <string.h>
#if __has_include(<valgrind/callgrind.h>)
#include <valgrind/callgrind.h>
#endif

typedef struct Context Context;
typedef struct String String;
typedef struct Key Key;
typedef struct Type Type;
typedef int (*Command)(Context *, String **, int);

/* The callbacks of a type that is never saved. Only `free` is called: for a value that is deleted. */
typedef struct {
    unsigned long long version;
    void *load, *save, *rewrite, *memory, *digest, *free;
} Methods;

static int (*GetApi)(const char *, void *);
static int (*SetModuleAttribs)(Context *, const char *, int, int);
static int (*CreateCommand)(Context *, const char *, Command, const char *, int, int, int);
static Type *(*CreateDataType)(Context *, const char *, int, Methods *);
static String *(*CreateString)(Context *, const char *, size_t);
static Key *(*OpenKey)(Context *, String *, int);
static void (*CloseKey)(Key *);
static int (*KeyType)(Key *);
static int (*DeleteKey)(Key *);
static int (*ModuleTypeSetValue)(Key *, Type *, void *);
static int (*SetAbsExpire)(Key *, long long);
static int (*StreamAdd)(Key *, int, void *, String **, long);
static int (*Replicate)(Context *, const char *, const char *, ...);
static int (*ReplicateVerbatim)(Context *);
static int (*SignalModifiedKey)(Context *, String *);
static int (*ReplyWithLongLong)(Context *, long long);
static int (*ReplyWithNull)(Context *);
static int (*ReplyWithArray)(Context *, long);
static int (*ReplyWithStringBuffer)(Context *, const char *, size_t);

enum { OK = 0, FAILED = 1, READ = 1, WRITE = 2, AUTOID = 1, PAIRS = 7 };

/* A fencing token, as many digits as Sluice's have. */
static const long long fence = 117949440000000001;

/* In the year 2096. Each command sets another one. */
static long long expiry = 4000000000000;

static Type *type;
static char value[128];
static String *stream, *entry[2 * PAIRS];

static void no_free(void *freed)
{
    (void)freed;
}

static void look_at_key(Context *ctx, String *name, int mode)
{
    Key *key = OpenKey(ctx, name, mode);
    KeyType(key);
    CloseKey(key);
}

/* Replicates an effect of the size that Sluice's have, and signals the change. */
static void tell_effect(Context *ctx, String *name)
{
    Replicate(ctx, "FLOOR.APPLY", "sb", name, value, (size_t)32);
    SignalModifiedKey(ctx, name);
}

static void write_key(Context *ctx, String *name)
{
    look_at_key(ctx, name, READ | WRITE);
    ReplicateVerbatim(ctx);
    SignalModifiedKey(ctx, name);
}

static void expire_key(Context *ctx, String *name)
{
    Key *key = OpenKey(ctx, name, READ | WRITE);
    KeyType(key);
    SetAbsExpire(key, expiry++);
    CloseKey(key);
}

static int reply_five(Context *ctx)
{
    ReplyWithArray(ctx, 5);
    ReplyWithLongLong(ctx, 0);
    ReplyWithLongLong(ctx, 1000000);
    ReplyWithLongLong(ctx, 999999);
    ReplyWithLongLong(ctx, -1);
    return ReplyWithLongLong(ctx, 60000);
}

/* BF.EXISTS, CF.EXISTS */
static int look(Context *ctx, String **argv, int argc)
{
    (void)argc;
    look_at_key(ctx, argv[1], READ);
    return ReplyWithLongLong(ctx, 1);
}

/* BF.MEXISTS */
static int look_many(Context *ctx, String **argv, int argc)
{
    look_at_key(ctx, argv[1], READ);
    ReplyWithArray(ctx, argc - 2);
    for (int item = 2; item < argc; item++)
        ReplyWithLongLong(ctx, 1);
    return OK;
}

/* CACHE.FETCH of a value: a command that writes when there is none */
static int fetch(Context *ctx, String **argv, int argc)
{
    (void)argc;
    look_at_key(ctx, argv[1], READ | WRITE);
    ReplyWithArray(ctx, 3);
    ReplyWithStringBuffer(ctx, "HIT", 3);
    ReplyWithStringBuffer(ctx, value, sizeof value);
    return ReplyWithLongLong(ctx, 3600000);
}

/* STOCK.DEDUCT */
static int deduct(Context *ctx, String **argv, int argc)
{
    (void)argc;
    write_key(ctx, argv[1]);
    return ReplyWithLongLong(ctx, 1000000);
}

/* STOCK.DEDUCT with an event, whose strings are there already */
static int deduct_event(Context *ctx, String **argv, int argc)
{
    (void)argc;
    look_at_key(ctx, argv[1], READ | WRITE);
    Key *events = OpenKey(ctx, stream, READ | WRITE);
    KeyType(events);
    StreamAdd(events, AUTOID, NULL, entry, PAIRS);
    CloseKey(events);
    SignalModifiedKey(ctx, stream);
    tell_effect(ctx, argv[1]);
    return ReplyWithLongLong(ctx, 1000000);
}

/* BF.ADD, CF.ADD */
static int add(Context *ctx, String **argv, int argc)
{
    (void)argc;
    write_key(ctx, argv[1]);
    return ReplyWithLongLong(ctx, 1);
}

/* CACHE.SET */
static int store(Context *ctx, String **argv, int argc)
{
    (void)argc;
    expire_key(ctx, argv[1]);
    Replicate(ctx, "FLOOR.APPLY", "sbs", argv[1], value, (size_t)32, argv[2]);
    SignalModifiedKey(ctx, argv[1]);
    return ReplyWithLongLong(ctx, 1);
}

/* RATE.WINDOW: its expiry changes once a window */
static int window(Context *ctx, String **argv, int argc)
{
    (void)argc;
    write_key(ctx, argv[1]);
    return reply_five(ctx);
}

/* RATE.GCRA: its expiry changes with each request */
static int gcra(Context *ctx, String **argv, int argc)
{
    (void)argc;
    expire_key(ctx, argv[1]);
    ReplicateVerbatim(ctx);
    SignalModifiedKey(ctx, argv[1]);
    return reply_five(ctx);
}

/* LOCK.ACQUIRE of a free lock */
static int acquire(Context *ctx, String **argv, int argc)
{
    (void)argc;
    Key *key = OpenKey(ctx, argv[1], READ | WRITE);
    KeyType(key);
    ModuleTypeSetValue(key, type, value);
    SetAbsExpire(key, expiry++);
    CloseKey(key);
    tell_effect(ctx, argv[1]);
    return ReplyWithLongLong(ctx, fence);
}

/* LOCK.ACQUIRE of another owner's lock */
static int refuse(Context *ctx, String **argv, int argc)
{
    (void)argc;
    look_at_key(ctx, argv[1], READ | WRITE);
    return ReplyWithNull(ctx);
}

/* LOCK.RENEW */
static int renew(Context *ctx, String **argv, int argc)
{
    (void)argc;
    expire_key(ctx, argv[1]);
    tell_effect(ctx, argv[1]);
    return ReplyWithLongLong(ctx, fence);
}

/* LOCK.RELEASE of the last hold */
static int release(Context *ctx, String **argv, int argc)
{
    (void)argc;
    Key *key = OpenKey(ctx, argv[1], READ | WRITE);
    KeyType(key);
    DeleteKey(key);
    CloseKey(key);
    ReplicateVerbatim(ctx);
    SignalModifiedKey(ctx, argv[1]);
    return ReplyWithLongLong(ctx, 0);
}

/* FLOOR.DUMP label: under callgrind, writes the counts since the last dump and begins anew. */
static int dump(Context *ctx, String **argv, int argc)
{
    (void)argv, (void)argc;
#ifdef CALLGRIND_DUMP_STATS_AT
    CALLGRIND_DUMP_STATS;
#endif
    return ReplyWithLongLong(ctx, 1);
}

static int finds_all_functions(void)
{
    const struct {
        const char *name;
        void *function;
    } wanted[] = {
        {"RedisModule_SetModuleAttribs", &SetModuleAttribs},
        {"RedisModule_CreateCommand", &CreateCommand},
        {"RedisModule_CreateDataType", &CreateDataType},
        {"RedisModule_CreateString", &CreateString},
        {"RedisModule_OpenKey", &OpenKey},
        {"RedisModule_CloseKey", &CloseKey},
        {"RedisModule_KeyType", &KeyType},
        {"RedisModule_DeleteKey", &DeleteKey},
        {"RedisModule_ModuleTypeSetValue", &ModuleTypeSetValue},
        {"RedisModule_SetAbsExpire", &SetAbsExpire},
        {"RedisModule_StreamAdd", &StreamAdd},
        {"RedisModule_Replicate", &Replicate},
        {"RedisModule_ReplicateVerbatim", &ReplicateVerbatim},
        {"RedisModule_SignalModifiedKey", &SignalModifiedKey},
        {"RedisModule_ReplyWithLongLong", &ReplyWithLongLong},
        {"RedisModule_ReplyWithNull", &ReplyWithNull},
        {"RedisModule_ReplyWithArray", &ReplyWithArray},
        {"RedisModule_ReplyWithStringBuffer", &ReplyWithStringBuffer},
    };
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++)
        if (GetApi(wanted[i].name, wanted[i].function) != OK)
            return 0;
    return 1;
}

static int creates_all_commands(Context *ctx)
{
    const char *reads = "readonly fast", *writes = "write deny-oom fast", *frees = "write fast";
    const struct {
        const char *name;
        Command run;
        const char *flags;
    } commands[] = {
        {"floor.look", look, reads},
        {"floor.look_many", look_many, reads},
        {"floor.fetch", fetch, frees},
        {"floor.deduct", deduct, writes},
        {"floor.deduct_event", deduct_event, writes},
        {"floor.add", add, writes},
        {"floor.store", store, writes},
        {"floor.window", window, writes},
        {"floor.gcra", gcra, writes},
        {"floor.acquire", acquire, writes},
        {"floor.refuse", refuse, writes},
        {"floor.renew", renew, frees},
        {"floor.release", release, frees},
        {"floor.apply", add, writes},
        {"floor.dump", dump, reads},
    };
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++)
        if (CreateCommand(ctx, commands[i].name, commands[i].run, commands[i].flags, 1, 1, 1) != OK)
            return 0;
    return 1;
}

/* The server calls this when it loads the module. A context begins with the function that finds all others. */
int RedisModule_OnLoad(Context *ctx, String **argv, int argc)
{
    Methods methods = {.version = 1, .free = no_free};
    const char *words[2 * PAIRS] = {"op", "deduct", "sku", "row:000", "order", "order:0000", "user", "user:0000",
                                    "qty", "1", "available", "1000000", "ver", "1000"};
    (void)argv, (void)argc;
    memcpy(&GetApi, ctx, sizeof GetApi);
    memset(value, 'v', sizeof value);
    if (!finds_all_functions())
        return FAILED;
    SetModuleAttribs(ctx, "floor", 1, 1);
    type = CreateDataType(ctx, "floor-key", 0, &methods);
    stream = CreateString(NULL, "floor:events", strlen("floor:events"));
    for (int i = 0; i < 2 * PAIRS; i++)
        entry[i] = CreateString(NULL, words[i], strlen(words[i]));
    return type && creates_all_commands(ctx) ? OK : FAILED;
}
