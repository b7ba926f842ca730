package source

import (
	"bytes"
	"encoding/json"
	"fmt"
	"time"
)

// These are the values of Config.Type.
const (
	TypeKafka    = "kafka"
	TypeNATS     = "nats"
	TypeRedis    = "redis-stream"
	TypePostgres = "postgres"
)

// These are the values of Config.Format.
const (
	FormatJSON     = "json"
	FormatDebezium = "debezium"
)

// The setting on-error decides what happens to a message that cannot be applied.
const (
	OnErrorDeadLetter = "dead-letter" // write the message to the dead letters
	OnErrorStop       = "stop"        // stall the partition before the message; only an op that overflows becomes a dead letter
	OnErrorSkip       = "skip"        // drop the message, and only count it as rejected
)

// These constants bound a configuration.
const (
	configBytesMax   = 64 << 10
	textBytesMax     = 1024
	brokersMax       = 32
	startsMax        = 4096
	batchMessagesMax = 100_000
	lingerMax        = 10 * time.Second

	batchMessagesDefault = 10_000
	lingerDefault        = 20 * time.Millisecond
)

// Config describes which queue a source reads, and how its messages become ops. ParseConfig checks
// it.
type Config struct {
	Name string `json:"name"`
	Type string `json:"type"`

	Brokers     []string `json:"brokers,omitempty"`     // kafka
	Topic       string   `json:"topic,omitempty"`       // kafka
	URL         string   `json:"url,omitempty"`         // nats
	Stream      string   `json:"stream,omitempty"`      // nats
	Addr        string   `json:"addr,omitempty"`        // redis-stream
	Key         string   `json:"key,omitempty"`         // redis-stream
	Field       string   `json:"field,omitempty"`       // redis-stream: name of the field of each entry that has the message
	DSN         string   `json:"dsn,omitempty"`         // postgres
	Slot        string   `json:"slot,omitempty"`        // postgres
	Publication string   `json:"publication,omitempty"` // postgres
	Prefix      string   `json:"prefix,omitempty"`      // postgres: prefix of pg_logical_emit_message

	Username     string `json:"username,omitempty"`
	PasswordFile string `json:"password-file,omitempty"` // name of a file on each node; the catalog must contain no secrets
	Mechanism    string `json:"mechanism,omitempty"`     // kafka: plain, scram-sha-256 or scram-sha-512
	TLS          *TLS   `json:"tls,omitempty"`           // nil for no TLS, unless the address requires it

	// DeadLetters is the topic, subject, key or table of the dead letters.
	DeadLetters string `json:"dead-letters"`

	Start   StartAt  `json:"start"`
	Format  string   `json:"format"`
	Map     *Mapping `json:"map,omitempty"`
	OnError string   `json:"on-error"`
	Batch   Bounds   `json:"batch"`
}

// TLS names PEM files of each node. Without CAFile, countd trusts the system's certificate
// authorities. Without CertFile, countd sends no certificate.
type TLS struct {
	CAFile   string `json:"ca-file,omitempty"`
	CertFile string `json:"cert-file,omitempty"`
	KeyFile  string `json:"key-file,omitempty"`
}

// Bounds bound a batch.
type Bounds struct {
	Messages int      `json:"messages"`
	Linger   Duration `json:"linger"` // how long the first message of a batch waits for others
}

// Mapping describes where a message or row has the parts of an op. Each part is a constant, or a
// path such as $.post.id. For the keyspace unread, User replaces ID. A mapping has either Add or
// Set. A mapping with Member has no Add, and its Set decides whether the member joins. A mapping of
// table rows has no Set. The fields If and Unless are paths. A message or row counts only if the
// value at If is true and the value at Unless is null, false or 0.
type Mapping struct {
	If       string `json:"if,omitempty"`
	Unless   string `json:"unless,omitempty"`
	Keyspace string `json:"keyspace,omitempty"`
	ID       string `json:"id,omitempty"`
	User     string `json:"user,omitempty"`
	Column   string `json:"column"`
	Add      string `json:"add,omitempty"`
	Set      string `json:"set,omitempty"`
	Member   string `json:"member,omitempty"`
}

// StartAt sets where a source begins a partition that it has never read.
type StartAt struct {
	Latest bool
	At     map[uint32]Position // start positions by partition; a partition without an entry begins at its first message

	texts map[uint32]string // the positions as text; parsed once Config.Type is known
	ids   bool              // the positions are ids of a Redis stream
}

// Earliest reports whether all partitions begin at their first messages.
func (s StartAt) Earliest() bool { return !s.Latest && len(s.At) == 0 }

// MarshalJSON returns "earliest", "latest" or an object of positions by partition.
func (s StartAt) MarshalJSON() ([]byte, error) {
	switch {
	case s.Latest:
		return []byte(`"latest"`), nil
	case len(s.At) == 0:
		return []byte(`"earliest"`), nil
	}
	if !s.ids {
		return json.Marshal(s.At)
	}
	ids := make(map[uint32]string, len(s.At))
	for partition, p := range s.At {
		ids[partition] = fmt.Sprintf("%d-%d", p.Hi, p.Lo)
	}
	return json.Marshal(ids)
}

// Duration is a time.Duration that JSON encodes as a text.
type Duration time.Duration

// MarshalJSON returns a text such as "20ms".
func (d Duration) MarshalJSON() ([]byte, error) { return json.Marshal(time.Duration(d).String()) }

// ConfigError is returned for a configuration with a bad field.
type ConfigError struct {
	Field   string // path of the field; "" if the whole text is not a configuration
	Problem string
}

func (e *ConfigError) Error() string {
	if e.Field == "" {
		return e.Problem
	}
	return e.Field + ": " + e.Problem
}

func bad(field, format string, args ...any) error {
	return &ConfigError{field, fmt.Sprintf(format, args...)}
}

// JSON returns the configuration as the catalog stores it. ParseConfig accepts it.
func (c *Config) JSON() []byte {
	text, err := json.Marshal(c)
	if err != nil {
		panic(err) // cannot happen: every field can be encoded
	}
	return text
}

// SameMeaning reports whether both configurations read the same queue and make the same ops of its
// messages. Only then may one replace the other while shards are at different positions.
func (c *Config) SameMeaning(other *Config) bool {
	return bytes.Equal(c.meaning(), other.meaning())
}

// Continues returns an error if c cannot continue at position p, which the previous configuration
// has reached. A position inside a transaction of PostgreSQL is the number of a change within the
// publication. So it is valid only for that publication.
func (c *Config) Continues(previous *Config, p Position) error {
	if c.Type == TypePostgres && previous.Publication != c.Publication && p.Lo != 0 {
		return fmt.Errorf("position %s is inside a transaction, whose changes publication %s numbers otherwise than %s: change it when the transaction is counted", p, c.Publication, previous.Publication)
	}
	return nil
}

// meaning returns, as JSON, the fields that decide which queue is read and how its messages become
// ops. It omits how the node connects (addresses, logins, TLS), and how it reads (start, batches,
// errors, dead letters).
func (c *Config) meaning() []byte {
	m := *c
	m.Brokers, m.URL, m.Addr, m.DSN = nil, "", "", ""
	m.Username, m.PasswordFile, m.Mechanism, m.TLS = "", "", "", nil
	m.DeadLetters, m.OnError, m.Batch, m.Start = "", "", Bounds{}, StartAt{}
	return m.JSON()
}
