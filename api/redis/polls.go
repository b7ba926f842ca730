package redis

import (
	"bytes"
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/countd/countd/api/redis/resp"
	"github.com/countd/countd/inbox"
	"github.com/countd/countd/names"
	"github.com/countd/countd/raftfsm/kinds"
)

// until returns the deadline of a poll. A poll of several users gets half of the remaining time. So
// if it fails, there is time left for a poll of each user alone.
func (q *pollCall) until(deadline time.Time) time.Time {
	if len(q.poll.Users) == 1 {
		return deadline
	}
	return halfway(deadline)
}

// pollAlone repeats each failed poll of several users as one poll for each user, so that the
// failure of one user does not affect the others. It returns the added polls.
func (q *calls) pollAlone() []pollCall {
	n := len(q.polls)
	for i, a := range q.polled {
		if together := &q.polls[a.poll]; a.err == nil && together.err != nil && len(together.poll.Users) > 1 {
			q.polled[i] = polled{poll: len(q.polls)}
			q.polls = append(q.polls, pollCall{poll: inbox.Poll{
				Users:    []uint64{together.poll.Users[a.user]},
				Channels: slices.Clone(together.poll.Channels),
				Dots:     slices.Clone(together.poll.Dots),
			}})
		}
	}
	return q.polls[n:]
}

func poll(a *arguments) { pollUsers(a, 1, (*batch).appendPoll) }

func mpoll(a *arguments) {
	users := 0
	for _, word := range a.Words[1:] {
		if users > 0 && (bytes.EqualFold(word, []byte("channels")) || bytes.EqualFold(word, []byte("dots"))) {
			break
		}
		users++
	}
	if users > inbox.PollUsersMax {
		a.Fail(resp.FieldError("users", fmt.Sprintf("more than %d", inbox.PollUsersMax)))
		users = 0
	}
	pollUsers(a, max(users, 1), (*batch).appendPolls)
}

// pollUsers plans a poll of the users that the first arguments name.
func pollUsers(a *arguments, users int, form appendOther) {
	b, q := a.b, &a.b.calls
	p := &q.nextPoll().poll
	space, err := b.conn.server.node().namesOf(kinds.KeyspaceUnread)
	a.Fail(err)
	var waiting map[int]*names.Text // by user
	for i := range users {
		id, of, ok := b.idIn(space, a.Next())
		if !ok {
			a.Fail(resp.FieldError("user", names.Problem(space)))
		}
		if of != nil {
			if waiting == nil {
				waiting = map[int]*names.Text{}
			}
			waiting[i] = of
		}
		p.Users = append(p.Users, id)
	}
	a.Options(namesOption("channels", &p.Channels), namesOption("dots", &p.Dots))
	if b.failed(a.Err) {
		q.polls = q.polls[:len(q.polls)-1]
		return
	}
	at, from := q.mergePolls(), len(q.polled)
	for i := range users {
		q.polled = append(q.polled, polled{poll: at, user: len(q.polls[at].poll.Users) - users + i})
		if of := waiting[i]; of != nil {
			b.await(of, names.Reads, func(number uint64, err error) {
				p := &q.polled[from+i]
				q.polls[p.poll].poll.Users[p.user], p.err = number, err
			})
		}
	}
	b.plan(form, from, len(q.polled))
	b.pending += feedRows * users
}

// namesOption returns an option whose values are names of channels or dots.
func namesOption(field string, into *[]string) resp.Option {
	return resp.ListOption(field, inbox.NamesMax, 1, func(names [][]byte) error {
		for _, name := range names {
			var problem string
			if *into, problem = inbox.AppendName(*into, name); problem != "" {
				return resp.FieldError(field, resp.Shown(name)+": "+problem)
			}
		}
		return nil
	})
}

// nextPoll adds an empty poll. It reuses the memory of a poll of an earlier batch.
func (q *calls) nextPoll() *pollCall {
	if n := len(q.polls); n < cap(q.polls) {
		q.polls = q.polls[:n+1]
	} else {
		q.polls = append(q.polls, pollCall{})
	}
	next := &q.polls[len(q.polls)-1]
	p := &next.poll
	p.Users, p.Channels, p.Dots, next.err = p.Users[:0], p.Channels[:0], p.Dots[:0], nil
	return next
}

// mergePolls merges the last poll into the previous one, if both have the same names and one poll
// may have all their users. It returns the index of the poll that now has the last poll's users.
func (q *calls) mergePolls() int {
	last := len(q.polls) - 1
	if last == 0 {
		return 0
	}
	p, before := &q.polls[last].poll, &q.polls[last-1].poll
	if len(before.Users)+len(p.Users) > inbox.PollUsersMax || !slices.Equal(p.Channels, before.Channels) || !slices.Equal(p.Dots, before.Dots) {
		return last
	}
	before.Users = append(before.Users, p.Users...)
	q.polls = q.polls[:last]
	return last - 1
}

// appendPolls appends an array with the poll of each user. If a poll failed, it appends only the
// first error.
func (b *batch) appendPolls(dst []byte, r *reply) []byte {
	start := len(dst)
	dst = resp.AppendArray(dst, int(r.to-r.from))
	for _, a := range b.calls.polled[r.from:r.to] {
		q := &b.calls.polls[a.poll]
		if err := cmp.Or(a.err, q.err); err != nil {
			return b.appendFailure(dst[:start], err)
		}
		dst = appendUser(dst, &q.poll, a.user, b.conn.resp3)
	}
	return dst
}

// appendPoll appends the poll of one user.
func (b *batch) appendPoll(dst []byte, r *reply) []byte {
	a := b.calls.polled[r.from]
	q := &b.calls.polls[a.poll]
	if err := cmp.Or(a.err, q.err); err != nil {
		return b.appendFailure(dst, err)
	}
	return appendUser(dst, &q.poll, a.user, b.conn.resp3)
}

// appendUser appends the result of user i of a poll.
func appendUser(dst []byte, p *inbox.Poll, i int, resp3 bool) []byte {
	parts := p.Parts()
	dst = resp.AppendMap(dst, len(parts), resp3)
	for n := range parts {
		part := &parts[n]
		if dst = resp.AppendBulk(dst, part.Name); part.One {
			dst = resp.AppendInt(dst, part.Numbers[i])
			continue
		}
		dst = resp.AppendMap(dst, len(part.Names), resp3)
		for at, name := range part.Names {
			dst = resp.AppendBulk(dst, name)
			if at += i * len(part.Names); part.Truths != nil {
				dst = resp.AppendTruth(dst, part.Truths[at])
			} else {
				dst = resp.AppendInt(dst, part.Numbers[at])
			}
		}
	}
	return dst
}
