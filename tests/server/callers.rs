//! Commands that another module calls, for a client that has no user.

use crate::support::{Builder, Lines as _, Raw, Server, compile};

/// A module whose command `other.call` calls the command that its arguments are. Without the server's header: what it needs of
/// the API is a few lines.
const CALLER: &str = r#"
typedef int (*get_api)(const char *, void *);
static int (*set_attributes)(void *, const char *, int, int);
static int (*create_command)(void *, const char *, int (*)(void *, void **, int), const char *, int, int, int);
static void *(*call)(void *, const char *, const char *, ...);
static int (*reply_with_call_reply)(void *, void *);
static int (*reply_with_null)(void *);
static const char *(*text_of)(const void *, unsigned long *);
static int command(void *ctx, void **argv, int argc) {
    void *reply = call(ctx, text_of(argv[1], 0), "v", argv + 2, (unsigned long)(argc - 2));
    return reply ? reply_with_call_reply(ctx, reply) : reply_with_null(ctx);
}
int RedisModule_OnLoad(void *ctx, void **argv, int argc) {
    get_api get = (get_api)((void **)ctx)[0];
    (void)argv, (void)argc;
    if (get("RedisModule_SetModuleAttribs", &set_attributes)) return 1;
    if (get("RedisModule_CreateCommand", &create_command)) return 1;
    if (get("RedisModule_Call", &call)) return 1;
    if (get("RedisModule_ReplyWithCallReply", &reply_with_call_reply)) return 1;
    if (get("RedisModule_ReplyWithNull", &reply_with_null)) return 1;
    if (get("RedisModule_StringPtrLen", &text_of)) return 1;
    set_attributes(ctx, "caller", 1, 1);
    return create_command(ctx, "other.call", command, "write", 0, 0, 0);
}
"#;

#[test]
fn another_module_cannot_apply_what_only_a_master_may() {
    check_that_another_module_cannot_apply(Server::builder());
}

/// The module asks the server by `PING` whether a client has a user.
#[test]
fn another_module_cannot_apply_what_only_a_master_may_whatever_ping_is_called() {
    let builder = Server::builder().config("rename-command", "PING other.PING");
    check_that_another_module_cannot_apply(builder);
}

fn check_that_another_module_cannot_apply(builder: Builder) {
    let server = builder.config("enable-module-command", "yes").start();
    let library = server.dir().join("caller.so");
    compile(CALLER, &library);
    let mut client = Raw::connect(&server);
    client.must(&format!("MODULE LOAD {}", library.display()));
    assert!(
        client
            .must("other.call LOCK.ACQUIRE lock me PX 600000")
            .int()
            > 0
    );
    assert_eq!(client.must("other.call STOCK.SET stock 10"), "OK");
    let commands = client.must("COMMAND LIST FILTERBY MODULE sluice");
    let names = commands
        .array()
        .iter()
        .map(|name| name.text().to_uppercase());
    let internal: Vec<_> = names.filter(|name| name.ends_with(".APPLY")).collect();
    assert!(internal.len() > 5, "{internal:?}");
    for name in internal {
        for line in [
            format!("other.call {name} key x"),
            format!("EVAL redis.call('other.call','{name}','key','x') 0"),
        ] {
            let reply = client.run(&line);
            let is_refused = reply.is_err() && reply.err().contains("NOPERM");
            assert!(is_refused, "{line}: {reply:?}");
        }
        // In a script the server may know the user, who may do all.
        let line = format!("EVAL return(redis.call('{name}','key','x')) 0");
        assert!(client.run(&line).is_err(), "{line}");
    }
    assert_eq!(client.must("DBSIZE"), 2);
}
