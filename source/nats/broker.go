// Package nats reads a JetStream stream for package source.
//
// Sequence numbers have gaps only where messages were removed. A removed message may be one that no
// reader has counted, so every gap stalls the source.
package nats

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/countd/countd/source"
)

// Broker is a connection to a stream. It has partition 0 only.
type Broker struct {
	cfg     *source.Config
	options []nats.Option

	mu struct {
		sync.Mutex
		conn     *nats.Conn // nil before the first use; the library closes it if the server refuses the user
		denied   error      // the server's last denial of a request
		deniedAt time.Time
	}
}

// Open returns a broker. It connects when it is used.
func Open(cfg *source.Config, access source.Access) (*Broker, error) {
	options := []nats.Option{nats.Name("countd " + cfg.Name), nats.MaxReconnects(-1), nats.ReconnectWait(200 * time.Millisecond)}
	switch {
	case cfg.Username != "":
		options = append(options, nats.UserInfo(cfg.Username, access.Password))
	case access.Password != "":
		options = append(options, nats.Token(access.Password))
	}
	if access.TLS != nil {
		options = append(options, nats.Secure(access.TLS))
	}
	b := &Broker{cfg: cfg}
	b.options = append(options, nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) {
		if errors.Is(err, nats.ErrPermissionViolation) {
			b.mu.Lock()
			defer b.mu.Unlock()
			b.mu.denied, b.mu.deniedAt = err, time.Now()
		}
	}))
	return b, nil
}

// Close closes the connection.
func (b *Broker) Close() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.mu.conn != nil {
		b.mu.conn.Close()
		b.mu.conn = nil
	}
	return nil
}

// jetStream returns the connection. If there is none, it connects. The library reconnects by itself
// until the server refuses the user.
func (b *Broker) jetStream() (jetstream.JetStream, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.mu.conn == nil || b.mu.conn.IsClosed() {
		conn, err := nats.Connect(b.cfg.URL, b.options...)
		if err != nil {
			return nil, err
		}
		b.mu.conn = conn
	}
	return jetstream.New(b.mu.conn)
}

// payloadMax returns the server's max_payload, or 0 without a connection.
func (b *Broker) payloadMax() int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.mu.conn == nil {
		return 0
	}
	return b.mu.conn.MaxPayload()
}

// requestMax bounds the wait for an answer. A server that stops or starts may lose a request.
const requestMax = 5 * time.Second

// stream returns the stream and its current state.
func (b *Broker) stream(ctx context.Context) (jetstream.Stream, *jetstream.StreamInfo, error) {
	js, err := b.jetStream()
	if err != nil {
		return nil, nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, requestMax)
	defer cancel()
	asked := time.Now()
	stream, err := js.Stream(ctx, b.cfg.Stream)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		return nil, nil, source.Stalled("stream %s is missing", b.cfg.Stream)
	}
	if err != nil {
		return nil, nil, b.explain(err, asked)
	}
	return stream, stream.CachedInfo(), nil
}

// explain replaces a timeout by the reason of the server's last denial, if that denial came after
// the request was sent.
func (b *Broker) explain(err error, sent time.Time) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	waited := errors.Is(err, context.DeadlineExceeded) || errors.Is(err, jetstream.ErrNoHeartbeat)
	if waited && b.mu.deniedAt.After(sent) {
		return b.mu.denied
	}
	return err
}

// Identity returns the stream's name and time of creation.
func (b *Broker) Identity(ctx context.Context) (string, error) {
	_, info, err := b.stream(ctx)
	if err != nil {
		return "", err
	}
	if info.Config.Retention != jetstream.LimitsPolicy {
		return "", source.Stalled("stream %s has retention %s: messages leave it before they are read; a source needs limits",
			b.cfg.Stream, strings.ToLower(info.Config.Retention.String()))
	}
	for _, is := range []struct {
		set     bool
		setting string
	}{
		{info.Config.MaxMsgsPerSubject > 0, fmt.Sprintf("max_msgs_per_subject %d", info.Config.MaxMsgsPerSubject)},
		{info.Config.AllowRollup, "allow_rollup_hdrs"}, {info.Config.AllowMsgTTL, "allow_msg_ttl"},
	} {
		if is.set {
			return "", source.Stalled("stream %s has %s: messages leave it from between others, before they are read; a source needs a stream without", b.cfg.Stream, is.setting)
		}
	}
	for _, subject := range info.Config.Subjects {
		if covers(subject, b.cfg.DeadLetters) {
			return "", source.Stalled("dead-letters: subject %s is of stream %s, which would be read again", b.cfg.DeadLetters, b.cfg.Stream)
		}
	}
	return identity(info), nil
}

func identity(info *jetstream.StreamInfo) string {
	return "stream " + info.Config.Name + " made at " + info.Created.UTC().Format(time.RFC3339Nano)
}

// covers reports whether a pattern of subjects matches a subject without wildcards.
func covers(pattern, subject string) bool {
	tokens, have := strings.Split(pattern, "."), strings.Split(subject, ".")
	for i, token := range tokens {
		switch {
		case token == ">":
			return len(have) > i
		case i >= len(have) || token != "*" && token != have[i]:
			return false
		}
	}
	return len(tokens) == len(have)
}

// Partitions returns partition 0.
func (b *Broker) Partitions(context.Context) ([]uint32, error) { return []uint32{0}, nil }

// Bounds returns the first and the next sequence number.
func (b *Broker) Bounds(ctx context.Context, _ uint32) (first, end source.Position, err error) {
	_, info, err := b.stream(ctx)
	if err != nil {
		return first, end, err
	}
	return source.Position{Lo: max(1, info.State.FirstSeq)}, source.Position{Lo: info.State.LastSeq + 1}, nil
}

// DeadLetter publishes letters to the subject of the dead letters. A stream must store that
// subject. The server drops a repeated letter within the stream's duplicate window.
func (b *Broker) DeadLetter(ctx context.Context, letters []source.Letter) error {
	js, err := b.jetStream()
	if err != nil {
		return err
	}
	for i := range letters {
		l := &letters[i]
		m := nats.NewMsg(b.cfg.DeadLetters)
		m.Data = l.Value
		m.Header.Set("Countd-Source", l.Source)
		m.Header.Set("Countd-Partition", strconv.FormatUint(uint64(l.Partition), 10))
		m.Header.Set("Countd-Position", l.Position.String())
		m.Header.Set("Countd-Reason", strings.Map(plain, l.Reason))
		if l.Op != "" {
			m.Header.Set("Countd-Op", l.Op)
		}
		asked := time.Now()
		err := publish(ctx, js, m, l.Key())
		if tooLarge(err) {
			return source.Stalled("the dead letter of position %s, a message of %d bytes and its headers, is over what the stream of subject %s takes: let it take more, or set on-error: skip",
				l.Position, len(l.Value), b.cfg.DeadLetters)
		}
		if errors.Is(err, jetstream.ErrNoStreamResponse) {
			return fmt.Errorf("no stream takes subject %s: %w", b.cfg.DeadLetters, err)
		}
		if err != nil {
			return b.explain(err, asked)
		}
	}
	return nil
}

func publish(ctx context.Context, js jetstream.JetStream, m *nats.Msg, id string) error {
	ctx, cancel := context.WithTimeout(ctx, requestMax)
	defer cancel()
	_, err := js.PublishMsg(ctx, m, jetstream.WithMsgID(id))
	return err
}

// CheckLetters implements source.LetterQueue.
func (b *Broker) CheckLetters(ctx context.Context) error {
	js, err := b.jetStream()
	if err != nil {
		return err
	}
	if _, err = js.StreamNameBySubject(ctx, b.cfg.DeadLetters); errors.Is(err, jetstream.ErrStreamNotFound) {
		return source.Stalled("no stream takes subject %s", b.cfg.DeadLetters)
	}
	return err
}

// Denied reports whether the server refuses the user, or only one side uses TLS.
func (b *Broker) Denied(err error) bool {
	return errors.Is(err, nats.ErrAuthorization) || errors.Is(err, nats.ErrAuthExpired) || errors.Is(err, nats.ErrAuthRevoked) ||
		errors.Is(err, nats.ErrPermissionViolation) || errors.Is(err, nats.ErrSecureConnWanted)
}

// tooLarge reports whether a message exceeds the server's max_payload or the stream's bound.
func tooLarge(err error) bool {
	const exceedsMaximum = 10054
	api, is := errors.AsType[*jetstream.APIError](err)
	return errors.Is(err, nats.ErrMaxPayload) || is && api.ErrorCode == exceedsMaximum
}

// plain replaces a control character, which a header cannot contain, by a space.
func plain(r rune) rune {
	if r < ' ' {
		return ' '
	}
	return r
}
