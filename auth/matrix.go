package auth

// Where a call names the keyspaces that it needs access to.
const (
	InMatrix = iota // Need.Keyspaces has them
	InPath          // its path names one
	InBody          // its body, its parameters or its keys name them; the server checks each
)

// Need is what a call needs. The zero Need is that of calls that the matrix does not name:
// nobody may make them.
type Need struct {
	Access    Access
	In        int
	Keyspaces []string // each is needed
}

func read(keyspaces ...string) Need   { return Need{Access: Read, Keyspaces: keyspaces} }
func ingest(keyspaces ...string) Need { return Need{Access: Ingest, Keyspaces: keyspaces} }
func write(keyspaces ...string) Need  { return Need{Access: Write, Keyspaces: keyspaces} }

func inPath(a Access) Need { return Need{Access: a, In: InPath} }
func inBody(a Access) Need { return Need{Access: a, In: InBody} }

var (
	public = Need{Access: Public}
	known  = Need{Access: Known}
	status = Need{Access: Status}
	admin  = Need{Access: Admin}
)

// Route is a route of the HTTP API, as docs/openapi.yaml names it.
type Route struct {
	Method, Path string
	Need         Need
}

// Routes is the matrix of the HTTP API. Notices and dots are unread numbers: their keyspace is
// unread. Outboxes are rows of users. Configurations of sources may hold passwords of queues.
var Routes = []Route{
	{"GET", "/healthz", public},
	{"GET", "/readyz", public}, // a caller without a token learns no reason
	{"GET", "/", known},
	{"GET", "/openapi.yaml", known},
	{"GET", "/v1/version", known},
	{"GET", "/v1/keyspaces", known},

	{"GET", "/v1/counters/{keyspace}/{id}", inPath(Read)},
	{"POST", "/v1/counters/{keyspace}/get", inPath(Read)},
	{"POST", "/v1/counters/{keyspace}/scan", inPath(Read)},
	{"POST", "/v1/counters/{keyspace}/incr", inPath(Ingest)},
	{"POST", "/v1/counters/{keyspace}/set", inPath(Write)},
	{"POST", "/v1/counters/{keyspace}/correct", inPath(Write)},
	{"PUT", "/v1/counters/{keyspace}/{id}", inPath(Write)},
	{"DELETE", "/v1/counters/{keyspace}/{id}", inPath(Write)},
	{"POST", "/v1/ops", inBody(Ingest)}, // a set needs Write

	{"POST", "/v1/members/{keyspace}/{column}", inPath(Ingest)}, // without counting it needs Write
	{"POST", "/v1/members/{keyspace}/{column}/check", inPath(Read)},
	{"GET", "/v1/members/{keyspace}/{column}/{id}", inPath(Read)},
	{"GET", "/v1/members/{keyspace}/{column}/of/{member}", inPath(Read)},

	{"GET", "/v1/unread/{user}", read("unread")},
	{"POST", "/v1/unread/incr", ingest("unread")},
	{"POST", "/v1/unread/{user}/reset", write("unread")},
	{"GET", "/v1/notices", read("unread")},
	{"POST", "/v1/notices/{channel}", write("unread")},
	{"DELETE", "/v1/notices/{channel}/{seq}", write("unread")},
	{"GET", "/v1/notices/{channel}/users/{user}", read("unread")},
	{"POST", "/v1/notices/{channel}/users/{user}/read", write("unread")},
	{"GET", "/v1/dots", read("unread")},
	{"PUT", "/v1/dots/{name}", write("unread")},
	{"POST", "/v1/dots/{name}/fire", write("unread")},
	{"GET", "/v1/dots/{name}/users/{user}", read("unread")},
	{"POST", "/v1/dots/{name}/users/{user}/clear", write("unread")},
	{"GET", "/v1/poll/{user}", read("unread", "feed")},
	{"POST", "/v1/poll", read("unread", "feed")},

	{"POST", "/v1/feed/{user}/reset", write("feed")},
	{"POST", "/v1/feed/{user}/follow", write("feed")},
	{"POST", "/v1/feed/{user}/unfollow", write("feed")},
	{"POST", "/v1/feed/{user}/read", write("feed")},
	{"GET", "/v1/feed/{user}/unread", read("feed")},
	{"GET", "/v1/feed/{user}/followees", read("feed")},
	{"GET", "/v1/feed/{user}/groups", read("feed")},
	{"GET", "/v1/feed/{user}/groups/{name}", read("feed")},
	{"PUT", "/v1/feed/{user}/groups/{name}", write("feed")},
	{"DELETE", "/v1/feed/{user}/groups/{name}", write("feed")},

	{"POST", "/v1/outbox/{author}", ingest("users")},
	{"DELETE", "/v1/outbox/{author}/{id}", ingest("users")},
	{"GET", "/v1/outbox/{author}", read("users")},
	{"GET", "/v1/timeline/{user}", read("feed", "users")}, // and the keyspace of its counts

	{"POST", "/v1/keyspaces", admin},
	{"DELETE", "/v1/keyspaces/{keyspace}", admin},
	{"POST", "/v1/keyspaces/{keyspace}/columns", admin},
	{"DELETE", "/v1/keyspaces/{keyspace}/columns/{column}", admin},
	{"POST", "/v1/keyspaces/{keyspace}/everywhere", admin},
	{"POST", "/v1/keyspaces/{keyspace}/full_replication", admin},

	{"GET", "/v1/sources", admin},
	{"GET", "/v1/sources/{source}", admin},
	{"PUT", "/v1/sources/{source}", admin},
	{"DELETE", "/v1/sources/{source}", admin},
	{"POST", "/v1/sources/{source}/pause", admin},
	{"POST", "/v1/sources/{source}/resume", admin},
	{"POST", "/v1/sources/{source}/seek", admin},
	{"POST", "/v1/sources/{source}/past", admin},
	{"POST", "/v1/sources/{source}/rows", admin},

	{"GET", "/v1/users", admin},
	{"GET", "/v1/users/{name}", admin},
	{"PUT", "/v1/users/{name}", admin},
	{"DELETE", "/v1/users/{name}", admin},
	{"POST", "/v1/users/{name}/tokens", admin},
	{"DELETE", "/v1/users/{name}/tokens/{id}", admin},

	{"GET", "/metrics", status},
	{"GET", "/v1/cluster", status},
	{"GET", "/v1/admin/nodes", status},
	{"GET", "/v1/admin/groups", status},
	{"GET", "/v1/admin/digests", status},
	{"GET", "/v1/admin/plan", status},
	{"GET", "/v1/admin/cold", status},
	{"GET", "/v1/admin/version", status},

	{"GET", "/v1/admin/audit", admin},
	{"POST", "/v1/admin/nodes/{node}/drain", admin},
	{"POST", "/v1/admin/nodes/{node}/undrain", admin},
	{"POST", "/v1/admin/nodes/{node}/remove", admin},
	{"POST", "/v1/admin/groups/{group}/transfer", admin},
	{"POST", "/v1/admin/groups/{group}/move", admin},
	{"GET", "/v1/admin/groups/{group}/snapshot", admin},
	{"POST", "/v1/admin/groups/{group}/restore", admin},
	{"POST", "/v1/admin/cold/migrate", admin},
	{"POST", "/v1/admin/cold/stop", admin},
	{"GET", "/v1/admin/sources", admin},
	{"POST", "/v1/admin/sources", admin},
	{"POST", "/v1/admin/version", admin},
}

// Commands is the matrix of the Redis protocol, by name. SCAN, DBSIZE and INFO are about the
// keyspaces that the caller may read.
var Commands = map[string]Need{
	"auth": public, "hello": public, "quit": public,

	"ping": known, "echo": known, "select": known, "client": known, "readonly": known, "readwrite": known,
	"command": known, "config": known, "info": known, "wait": known,
	"multi": known, "exec": known, "discard": known, "countd.session": known,

	"get": inBody(Read), "mget": inBody(Read), "hget": inBody(Read), "hmget": inBody(Read), "hgetall": inBody(Read),
	"hlen": inBody(Read), "hexists": inBody(Read), "hscan": inBody(Read),
	"scard": inBody(Read), "sismember": inBody(Read), "smismember": inBody(Read), "sscan": inBody(Read),
	"exists": inBody(Read), "type": inBody(Read), "ttl": inBody(Read), "scan": inBody(Read), "dbsize": inBody(Read),

	"incr": inBody(Ingest), "decr": inBody(Ingest), "incrby": inBody(Ingest), "decrby": inBody(Ingest),
	"hincrby": inBody(Ingest), "countd.incr": inBody(Ingest), "sadd": inBody(Ingest), "srem": inBody(Ingest),

	"set": inBody(Write), "mset": inBody(Write), "getset": inBody(Write), "getdel": inBody(Write), "del": inBody(Write),
	"hset": inBody(Write), "hdel": inBody(Write),

	"countd.unread.get":  read("unread"),
	"countd.unread.incr": ingest("unread"), "countd.unread.reset": write("unread"),
	"countd.notice.publish": write("unread"), "countd.notice.retract": write("unread"),
	"countd.notice.get": read("unread"), "countd.notice.read": write("unread"), "countd.notice.list": read("unread"),
	"countd.dot.fire": write("unread"), "countd.dot.set": write("unread"),
	"countd.dot.get": read("unread"), "countd.dot.clear": write("unread"), "countd.dot.list": read("unread"),
	"countd.feed.reset": write("feed"), "countd.feed.follow": write("feed"), "countd.feed.unfollow": write("feed"),
	"countd.feed.read": write("feed"), "countd.feed.unread": read("feed"),
	"countd.outbox.add": ingest("users"), "countd.outbox.rem": ingest("users"), "countd.outbox.list": read("users"),
	"countd.timeline": read("feed", "users"), // and the keyspace of its counts
	"countd.poll":     read("unread", "feed"), "countd.mpoll": read("unread", "feed"),
}
