package api

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"time"

	"github.com/valyala/fasthttp"

	"github.com/countd/countd/admin"
	"github.com/countd/countd/api/operate"
	clientadmin "github.com/countd/countd/client/admin"
	"github.com/countd/countd/shard"
)

// restoreIdleMax bounds each wait of a restore: for the client's next bytes, and for the cluster to
// accept the previous bytes. The whole restore has no time limit.
const restoreIdleMax = time.Minute

// snapshotGroup sends a snapshot of a shard, or redirects the client to the node that leads the
// shard. The request's deadline bounds only the wait until the snapshot begins.
func snapshotGroup(s *Server, ctx *fasthttp.RequestCtx, r *request) error {
	group, err := operate.Group(string(r.name))
	if err != nil {
		return err
	}
	until, cancel := context.WithDeadline(context.Background(), r.deadline)
	defer cancel()
	snapshot, err := s.cfg.Admin.OpenSnapshot(until, group)
	if elsewhere := (*admin.ElsewhereError)(nil); errors.As(err, &elsewhere) {
		ctx.Response.Header.Set(fasthttp.HeaderLocation, s.cfg.Scheme+"://"+elsewhere.HTTPAddr+string(ctx.URI().PathOriginal()))
		ctx.SetStatusCode(fasthttp.StatusTemporaryRedirect)
		return nil
	}
	if err != nil {
		return err
	}
	h := &ctx.Response.Header
	h.SetContentType(contentTypeStream)
	h.Set(headerIndex, strconv.FormatUint(snapshot.Index, 10))
	h.Set(headerRows, strconv.FormatUint(snapshot.Rows, 10))
	h.Set(headerModulus, strconv.FormatUint(uint64(snapshot.Route.Modulus), 10))
	h.Set(headerDigest, fmt.Sprintf("%016x", snapshot.Digest))
	out := &outgoing{ReadCloser: snapshot, conn: ctx.Conn(), timeout: s.cfg.WriteTimeout, caller: r.identity}
	ctx.SetBodyStream(out, int(snapshot.Bytes))
	return nil
}

// outgoing is the body of an answer that is sent in pieces. The client must accept each piece
// within WriteTimeout. The body fails once the client's token is revoked. fasthttp reads and closes
// the body on the goroutine of the connection.
type outgoing struct {
	io.ReadCloser
	conn    net.Conn
	timeout time.Duration
	caller  identity // a copy, because the request is released before the body is sent
}

func (o *outgoing) Read(p []byte) (int, error) {
	if err := o.caller.Still(); err != nil {
		return 0, err
	}
	if err := o.conn.SetWriteDeadline(time.Now().Add(o.timeout)); err != nil {
		return 0, err
	}
	return o.ReadCloser.Read(p)
}

// restoreGroup replaces the rows of a shard by those of the snapshot in the body.
func restoreGroup(s *Server, ctx *fasthttp.RequestCtx, r *request) error {
	group, err := operate.Group(string(r.name))
	if err != nil {
		return err
	}
	body := ctx.RequestBodyStream()
	if body == nil || ctx.Request.Header.ContentLength() == 0 {
		return invalid("body", "empty, a snapshot is needed")
	}
	until, cancel := context.WithCancel(context.Background())
	defer cancel()
	in := &incoming{Reader: body, conn: ctx.Conn(), timeout: s.cfg.ReadTimeout, permission: &r.identity, idle: time.AfterFunc(restoreIdleMax, cancel)}
	defer in.idle.Stop()
	o, err := operate.RestoreOptions(ctx.QueryArgs().All())
	if err != nil {
		return err
	}
	facts, err := s.cfg.Admin.RestoreShard(until, group, in, o)
	if err != nil {
		return err
	}
	return answerJSON(ctx, clientadmin.Restored{Group: group, Rows: facts.Rows, Digest: fmt.Sprintf("%016x", facts.Digest), CursorsSetBack: facts.SetBack})
}

// incoming is the body of a request that arrives in pieces. Each piece must arrive within
// ReadTimeout. The body fails once the client's token is revoked.
type incoming struct {
	io.Reader
	conn       net.Conn
	timeout    time.Duration
	permission shard.Permission
	idle       *time.Timer
}

func (i *incoming) Read(p []byte) (int, error) {
	if err := i.permission.Still(); err != nil {
		return 0, err
	}
	i.idle.Reset(restoreIdleMax)
	if err := i.conn.SetReadDeadline(time.Now().Add(i.timeout)); err != nil {
		return 0, err
	}
	return i.Reader.Read(p)
}
