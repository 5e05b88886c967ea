/* A module that has the types of RedisBloom's and valkey-bloom's filters. `types.set` makes values without content. */

#include <stdint.h>

typedef struct Context Context;
typedef struct String String;
typedef struct Key Key;
typedef struct Type Type;
typedef struct IO IO;

typedef struct {
    uint64_t version;
    void *(*load)(IO *, int);
    void (*save)(IO *, void *);
    void *aof_rewrite, *mem_usage, *digest;
    void (*free)(void *);
    void *rest[16];
} Methods;

static int (*SetModuleAttribs)(Context *, const char *, int, int);
static int (*CreateCommand)(Context *, const char *, int (*)(Context *, String **, int), const char *, int, int, int);
static Type *(*CreateDataType)(Context *, const char *, int, Methods *);
static Key *(*OpenKey)(Context *, String *, int);
static void (*CloseKey)(Key *);
static int (*ModuleTypeSetValue)(Key *, Type *, void *);
static void (*SaveUnsigned)(IO *, uint64_t);
static uint64_t (*LoadUnsigned)(IO *);
static int (*ReplyWithLongLong)(Context *, long long);

enum { TYPES = 3 };
static const char *const names[TYPES] = {"MBbloom--", "MBbloomCF", "bloomfltr"};
static Type *types[TYPES];
static char value[] = "value";

static void keep(void *unused)
{
    (void)unused;
}

static void *load(IO *io, int version)
{
    (void)version;
    LoadUnsigned(io);
    return value;
}

static void save(IO *io, void *unused)
{
    (void)unused;
    SaveUnsigned(io, 1);
}

/* types.set KEY KEY KEY: a value of each type. */
static int set(Context *ctx, String **argv, int argc)
{
    for (int i = 0; i < TYPES && i + 1 < argc; i++) {
        Key *key = OpenKey(ctx, argv[i + 1], 3);
        ModuleTypeSetValue(key, types[i], value);
        CloseKey(key);
    }
    return ReplyWithLongLong(ctx, TYPES);
}

int RedisModule_OnLoad(Context *ctx, String **argv, int argc)
{
    (void)argv, (void)argc;
    int (*get_api)(const char *, void *) = ((void **)ctx)[0];
    get_api("RedisModule_SetModuleAttribs", &SetModuleAttribs);
    get_api("RedisModule_CreateCommand", &CreateCommand);
    get_api("RedisModule_CreateDataType", &CreateDataType);
    get_api("RedisModule_OpenKey", &OpenKey);
    get_api("RedisModule_CloseKey", &CloseKey);
    get_api("RedisModule_ModuleTypeSetValue", &ModuleTypeSetValue);
    get_api("RedisModule_SaveUnsigned", &SaveUnsigned);
    get_api("RedisModule_LoadUnsigned", &LoadUnsigned);
    get_api("RedisModule_ReplyWithLongLong", &ReplyWithLongLong);
    SetModuleAttribs(ctx, "types", 1, 1);
    for (int i = 0; i < TYPES; i++) {
        Methods methods = {.version = 1, .load = load, .save = save, .free = keep};
        types[i] = CreateDataType(ctx, names[i], i == TYPES - 1 ? 1 : 4, &methods);
        if (!types[i])
            return 1;
    }
    return CreateCommand(ctx, "types.set", set, "write", 1, 3, 1);
}
