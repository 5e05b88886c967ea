/* The server's part of a module's commands. Each command here makes the calls that no module can do without: it reads the bytes of
   its arguments, opens the same key and looks at the type of its value, makes the same changes of the keyspace (a value appears or
   disappears, an expiry, a stream entry), replicates as much, signals the change, checks whether its keyspace event is enabled,
   and sends the same reply. A command whose result depends on the time reads the clock. It does nothing else: it does not use the
   arguments, and keeps no state.
   Commands are replicated verbatim. Those whose result depends on the clock or on a new number cannot: they replicate an effect.
   The benchmark loads this module beside Sluice. No module can be cheaper. */

#include <string.h>
#include <time.h>
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
static void (*SetModuleOptions)(Context *, int);
static int (*CreateCommand)(Context *, const char *, Command, const char *, int, int, int);
static Type *(*CreateDataType)(Context *, const char *, int, Methods *);
static String *(*CreateString)(Context *, const char *, size_t);
static String *(*CreateStringFromLongLong)(Context *, long long);
static void (*FreeString)(Context *, String *);
static const char *(*StringPtrLen)(const String *, size_t *);
static Key *(*OpenKey)(Context *, String *, int);
static void (*CloseKey)(Key *);
static int (*KeyType)(Key *);
static size_t (*ValueLength)(Key *);
static Type *(*ModuleTypeGetType)(Key *);
static void *(*ModuleTypeGetValue)(Key *);
static int (*DeleteKey)(Key *);
static int (*ModuleTypeSetValue)(Key *, Type *, void *);
static int (*SetAbsExpire)(Key *, long long);
static int (*StreamAdd)(Key *, int, void *, String **, long);
static int (*Replicate)(Context *, const char *, const char *, ...);
static int (*ReplicateVerbatim)(Context *);
static int (*SignalModifiedKey)(Context *, String *);
static int (*GetNotifyKeyspaceEvents)(void);
static int (*NotifyKeyspaceEvent)(Context *, int, const char *, String *);
static int (*ReplyWithLongLong)(Context *, long long);
static int (*ReplyWithBool)(Context *, int);
static int (*ReplyWithNull)(Context *);
static int (*ReplyWithArray)(Context *, long);
static int (*ReplyWithStringBuffer)(Context *, const char *, size_t);

enum { OK = 0, FAILED = 1, READ = 1, WRITE = 2, AUTOID = 1, PAIRS = 7 };
enum { HANDLES_IO_ERRORS = 1 << 0, NO_IMPLICIT_SIGNAL = 1 << 1 };
enum { EMPTY = 0, STREAM_EVENT = 1 << 10, MODULE_EVENT = 1 << 13 };

/* A fencing token, as many digits as Sluice's have. */
static const long long fence = 117949440000000001;

/* The numbers in an entry of the event stream. Each command has others. */
static long long available = 10000000, version;

static Type *type;
static char value[128];
static String *stream, *entry[2 * PAIRS];

/* A time that is not used. */
static volatile long long now;

static void no_free(void *freed)
{
    (void)freed;
}

static long long read_clock(void)
{
    struct timespec since;
    clock_gettime(CLOCK_REALTIME, &since);
    return since.tv_sec * 1000LL + since.tv_nsec / 1000000;
}

/* The arguments after the key. A module can read their bytes only with a call. */
static void read_arguments(String **argv, int argc)
{
    size_t length;
    for (int i = 2; i < argc; i++)
        StringPtrLen(argv[i], &length);
}

/* A key without a value of this module may hold another type, to which the reply is WRONGTYPE. */
static Key *open_key(Context *ctx, String *name, int mode)
{
    Key *key = OpenKey(ctx, name, mode);
    if (ModuleTypeGetType(key) || KeyType(key) != EMPTY)
        ModuleTypeGetValue(key);
    return key;
}

static void look_at_key(Context *ctx, String *name, int mode)
{
    CloseKey(open_key(ctx, name, mode));
}

/* Each command sets another expiry, as a lease or a limit that begins now does. */
static void expire(Key *key)
{
    static long long lease = 30000;
    SetAbsExpire(key, read_clock() + ++lease);
}

static void tell_listeners(Context *ctx, int event, String *name)
{
    if (GetNotifyKeyspaceEvents() & event)
        NotifyKeyspaceEvent(ctx, event, "floor", name);
}

static void tell_change(Context *ctx, String *name)
{
    SignalModifiedKey(ctx, name);
    tell_listeners(ctx, MODULE_EVENT, name);
}

/* Replicates an effect of the size that Sluice's have, and signals the change. */
static void tell_effect(Context *ctx, String *name)
{
    Replicate(ctx, "FLOOR.APPLY", "sb", name, value, (size_t)32);
    tell_change(ctx, name);
}

static void write_key(Context *ctx, String *name)
{
    look_at_key(ctx, name, READ | WRITE);
    ReplicateVerbatim(ctx);
    tell_change(ctx, name);
}

static void expire_key(Context *ctx, String *name)
{
    Key *key = open_key(ctx, name, READ | WRITE);
    expire(key);
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
    read_arguments(argv, argc);
    look_at_key(ctx, argv[1], READ);
    return ReplyWithBool(ctx, 1);
}

/* BF.MEXISTS */
static int look_many(Context *ctx, String **argv, int argc)
{
    read_arguments(argv, argc);
    look_at_key(ctx, argv[1], READ);
    ReplyWithArray(ctx, argc - 2);
    for (int item = 2; item < argc; item++)
        ReplyWithBool(ctx, 1);
    return OK;
}

/* CACHE.FETCH of a value: a command that writes when there is none */
static int fetch(Context *ctx, String **argv, int argc)
{
    read_arguments(argv, argc);
    look_at_key(ctx, argv[1], READ | WRITE);
    now = read_clock();
    ReplyWithArray(ctx, 3);
    ReplyWithStringBuffer(ctx, "HIT", 3);
    ReplyWithStringBuffer(ctx, value, sizeof value);
    return ReplyWithLongLong(ctx, 3600000);
}

/* STOCK.DEDUCT */
static int deduct(Context *ctx, String **argv, int argc)
{
    read_arguments(argv, argc);
    write_key(ctx, argv[1]);
    return ReplyWithLongLong(ctx, 1000000);
}

/* STOCK.DEDUCT with an event. Of the strings of its entry, two are new in each: what is available, and the version. A stream has
   a length beyond which it is trimmed. */
static int deduct_event(Context *ctx, String **argv, int argc)
{
    read_arguments(argv, argc);
    look_at_key(ctx, argv[1], READ | WRITE);
    Key *events = OpenKey(ctx, stream, READ | WRITE);
    KeyType(events);
    now = read_clock();
    entry[11] = CreateStringFromLongLong(NULL, --available);
    entry[13] = CreateStringFromLongLong(NULL, ++version);
    StreamAdd(events, AUTOID, NULL, entry, PAIRS);
    FreeString(NULL, entry[11]);
    FreeString(NULL, entry[13]);
    ValueLength(events);
    CloseKey(events);
    SignalModifiedKey(ctx, stream);
    tell_listeners(ctx, STREAM_EVENT, stream);
    tell_effect(ctx, argv[1]);
    return ReplyWithLongLong(ctx, 1000000);
}

/* BF.ADD, CF.ADD */
static int add(Context *ctx, String **argv, int argc)
{
    read_arguments(argv, argc);
    write_key(ctx, argv[1]);
    return ReplyWithBool(ctx, 1);
}

/* CACHE.SET */
static int store(Context *ctx, String **argv, int argc)
{
    read_arguments(argv, argc);
    expire_key(ctx, argv[1]);
    Replicate(ctx, "FLOOR.APPLY", "sbs", argv[1], value, (size_t)32, argv[2]);
    tell_change(ctx, argv[1]);
    return ReplyWithLongLong(ctx, 1);
}

/* RATE.WINDOW: its expiry changes once a window */
static int window(Context *ctx, String **argv, int argc)
{
    read_arguments(argv, argc);
    now = read_clock();
    write_key(ctx, argv[1]);
    return reply_five(ctx);
}

/* RATE.GCRA: its expiry changes with each request */
static int gcra(Context *ctx, String **argv, int argc)
{
    read_arguments(argv, argc);
    expire_key(ctx, argv[1]);
    ReplicateVerbatim(ctx);
    tell_change(ctx, argv[1]);
    return reply_five(ctx);
}

/* LOCK.ACQUIRE of a free lock */
static int acquire(Context *ctx, String **argv, int argc)
{
    read_arguments(argv, argc);
    Key *key = open_key(ctx, argv[1], READ | WRITE);
    ModuleTypeSetValue(key, type, value);
    expire(key);
    CloseKey(key);
    tell_effect(ctx, argv[1]);
    return ReplyWithLongLong(ctx, fence);
}

/* LOCK.ACQUIRE of another owner's lock */
static int refuse(Context *ctx, String **argv, int argc)
{
    read_arguments(argv, argc);
    look_at_key(ctx, argv[1], READ | WRITE);
    now = read_clock();
    return ReplyWithNull(ctx);
}

/* LOCK.RENEW */
static int renew(Context *ctx, String **argv, int argc)
{
    read_arguments(argv, argc);
    expire_key(ctx, argv[1]);
    tell_effect(ctx, argv[1]);
    return ReplyWithLongLong(ctx, fence);
}

/* LOCK.RELEASE of the last hold */
static int release(Context *ctx, String **argv, int argc)
{
    read_arguments(argv, argc);
    Key *key = open_key(ctx, argv[1], READ | WRITE);
    DeleteKey(key);
    CloseKey(key);
    ReplicateVerbatim(ctx);
    tell_change(ctx, argv[1]);
    return ReplyWithLongLong(ctx, 0);
}

/* FLOOR.DUMP label: under callgrind, writes the counts since the last dump and resets them. */
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
        {"RedisModule_SetModuleOptions", &SetModuleOptions},
        {"RedisModule_CreateCommand", &CreateCommand},
        {"RedisModule_CreateDataType", &CreateDataType},
        {"RedisModule_CreateString", &CreateString},
        {"RedisModule_CreateStringFromLongLong", &CreateStringFromLongLong},
        {"RedisModule_FreeString", &FreeString},
        {"RedisModule_StringPtrLen", &StringPtrLen},
        {"RedisModule_OpenKey", &OpenKey},
        {"RedisModule_CloseKey", &CloseKey},
        {"RedisModule_KeyType", &KeyType},
        {"RedisModule_ValueLength", &ValueLength},
        {"RedisModule_ModuleTypeGetType", &ModuleTypeGetType},
        {"RedisModule_ModuleTypeGetValue", &ModuleTypeGetValue},
        {"RedisModule_DeleteKey", &DeleteKey},
        {"RedisModule_ModuleTypeSetValue", &ModuleTypeSetValue},
        {"RedisModule_SetAbsExpire", &SetAbsExpire},
        {"RedisModule_StreamAdd", &StreamAdd},
        {"RedisModule_Replicate", &Replicate},
        {"RedisModule_ReplicateVerbatim", &ReplicateVerbatim},
        {"RedisModule_SignalModifiedKey", &SignalModifiedKey},
        {"RedisModule_GetNotifyKeyspaceEvents", &GetNotifyKeyspaceEvents},
        {"RedisModule_NotifyKeyspaceEvent", &NotifyKeyspaceEvent},
        {"RedisModule_ReplyWithLongLong", &ReplyWithLongLong},
        {"RedisModule_ReplyWithBool", &ReplyWithBool},
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
    /* Otherwise the server signals each key that is closed after it was open for writing, whether it has changed or not. */
    SetModuleOptions(ctx, HANDLES_IO_ERRORS | NO_IMPLICIT_SIGNAL);
    type = CreateDataType(ctx, "floor-key", 0, &methods);
    stream = CreateString(NULL, "floor:events", strlen("floor:events"));
    for (int i = 0; i < 2 * PAIRS; i++)
        entry[i] = CreateString(NULL, words[i], strlen(words[i]));
    return type && creates_all_commands(ctx) ? OK : FAILED;
}
