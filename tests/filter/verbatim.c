/* A module that replicates the commands of RedisBloom as they come, and does nothing else. It has the names of the commands, and no
   filters. */

typedef struct Context Context;
typedef struct String String;

static int (*SetModuleAttribs)(Context *, const char *, int, int);
static int (*CreateCommand)(Context *, const char *, int (*)(Context *, String **, int), const char *, int, int, int);
static int (*ReplicateVerbatim)(Context *);
static int (*ReplyWithSimpleString)(Context *, const char *);

static const char *const names[] = {
    "BF.RESERVE", "BF.ADD", "BF.MADD", "BF.INSERT", "BF.LOADCHUNK",
    "CF.RESERVE", "CF.ADD", "CF.ADDNX", "CF.INSERT", "CF.INSERTNX", "CF.DEL", "CF.LOADCHUNK",
};

static int replicate(Context *ctx, String **argv, int argc)
{
    (void)argv, (void)argc;
    ReplicateVerbatim(ctx);
    return ReplyWithSimpleString(ctx, "OK");
}

int RedisModule_OnLoad(Context *ctx, String **argv, int argc)
{
    (void)argv, (void)argc;
    int (*get_api)(const char *, void *) = ((void **)ctx)[0];
    get_api("RedisModule_SetModuleAttribs", &SetModuleAttribs);
    get_api("RedisModule_CreateCommand", &CreateCommand);
    get_api("RedisModule_ReplicateVerbatim", &ReplicateVerbatim);
    get_api("RedisModule_ReplyWithSimpleString", &ReplyWithSimpleString);
    SetModuleAttribs(ctx, "verbatim", 1, 1);
    for (unsigned i = 0; i < sizeof(names) / sizeof(*names); i++)
        if (CreateCommand(ctx, names[i], replicate, "write", 1, 1, 1))
            return 1;
    return 0;
}
