package redis

import (
	"fmt"
	"slices"
	"time"

	"github.com/countd/countd/api/redis/resp"
	"github.com/countd/countd/auth"
	"github.com/countd/countd/shard"
	"github.com/countd/countd/unread"
)

func pollCommands() []spec {
	const group = "countd"
	return []spec{
		{"countd.poll", -2, joins, noKeys, auth.Read.On(shard.KeyspaceUnread, shard.KeyspaceFeed), group, "counts, notices, dots and new posts of a user", poll},
		{"countd.mpoll", -2, joins, noKeys, auth.Read.On(shard.KeyspaceUnread, shard.KeyspaceFeed), group, "counts, notices, dots and new posts of each of several users", mpoll},
	}
}

// until returns the deadline of a poll. A poll of several users gets half of the time. If
// it fails, single polls for its users get the other half.
func (q *pollCall) until(deadline time.Time) time.Time {
	if len(q.poll.Users) == 1 {
		return deadline
	}
	return deadline.Add(-time.Until(deadline) / 2)
}

// pollAlone adds a poll for each user of each failed poll of several users, so that the failure of
// one user does not affect the others. It returns the added polls.
func (q *calls) pollAlone() []pollCall {
	n := len(q.polls)
	for i, a := range q.polled {
		if together := &q.polls[a.poll]; together.err != nil && len(together.poll.Users) > 1 {
			q.polled[i] = polled{len(q.polls), 0}
			q.polls = append(q.polls, pollCall{poll: unread.Poll{
				Users:    []uint64{together.poll.Users[a.user]},
				Channels: slices.Clone(together.poll.Channels),
				Dots:     slices.Clone(together.poll.Dots),
			}})
		}
	}
	return q.polls[n:]
}

func poll(c *conn, args [][]byte) { c.poll(args, 1, replyPoll) }

func mpoll(c *conn, args [][]byte) {
	users := 0
	for users+1 < len(args) && len(args[users+1]) > 0 && args[users+1][0] >= '0' && args[users+1][0] <= '9' {
		users++
	}
	if users > unread.PollUsersMax {
		c.batch.fail(fieldError("users", fmt.Sprintf("more than %d", unread.PollUsersMax)).Error())
		return
	}
	c.poll(args, max(users, 1), replyPolls)
}

// poll plans a poll of the users that the first arguments name.
func (c *conn) poll(args [][]byte, users int, kind replyKind) {
	a, q := c.arguments(args), &c.batch.calls
	p := &q.nextPoll().poll
	for range users {
		p.Users = append(p.Users, a.user())
	}
	a.options(
		listOption("channels", unread.NamesMax, 1, func(names [][]byte) (err error) {
			p.Channels, err = namesInto(p.Channels, "channels", names)
			return err
		}),
		listOption("dots", unread.NamesMax, 1, func(names [][]byte) (err error) {
			p.Dots, err = namesInto(p.Dots, "dots", names)
			return err
		}))
	if c.batch.failed(a.err) {
		q.polls = q.polls[:len(q.polls)-1]
		return
	}
	at, from := q.mergePolls(), len(q.polled)
	for i := range users {
		q.polled = append(q.polled, polled{at, len(q.polls[at].poll.Users) - users + i})
	}
	c.batch.replies = append(c.batch.replies, reply{kind: kind, from: from, to: len(q.polled)})
	c.batch.pending += feedRows * users
}

// namesInto appends names to list, which is empty. It reuses equal strings in the list's spare
// capacity, because clients repeat their polls.
func namesInto(list []string, field string, names [][]byte) ([]string, error) {
	before := list[:cap(list)]
	for i, name := range names {
		if problem := unread.NameProblem(list, name); problem != "" {
			return list, fieldError(field, shown(name)+": "+problem)
		}
		if i < len(before) && before[i] == string(name) {
			list = before[:i+1]
		} else {
			list = append(list, string(name))
		}
	}
	return list, nil
}

// nextPoll adds a poll and reuses the memory of an earlier one.
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

// mergePolls merges the last poll into the previous one if they are for the same names. It
// returns the index of the poll that now has its users.
func (q *calls) mergePolls() int {
	last := len(q.polls) - 1
	if last == 0 {
		return 0
	}
	p, before := &q.polls[last].poll, &q.polls[last-1].poll
	if len(before.Users)+len(p.Users) > unread.PollUsersMax || !slices.Equal(p.Channels, before.Channels) || !slices.Equal(p.Dots, before.Dots) {
		return last
	}
	before.Users = append(before.Users, p.Users...)
	q.polls = q.polls[:last]
	return last - 1
}

// appendPolls appends the reply for some users of polls.
func (b *batch) appendPolls(dst []byte, r *reply) []byte {
	asked := b.calls.polled[r.from:r.to]
	for _, a := range asked {
		if err := b.calls.polls[a.poll].err; err != nil {
			return b.appendFailure(dst, err)
		}
	}
	if r.kind == replyPolls {
		dst = resp.AppendArray(dst, len(asked))
	}
	for _, a := range asked {
		dst = appendPoll(dst, &b.calls.polls[a.poll].poll, a.user, b.conn.resp3)
	}
	return dst
}

// appendPoll appends the result of user i of a poll.
func appendPoll(dst []byte, p *unread.Poll, i int, resp3 bool) []byte {
	dst = resp.AppendMap(dst, 4, resp3)
	dst = resp.AppendMap(resp.AppendBulk(dst, "unread"), len(p.Columns), resp3)
	for n, name := range p.Columns {
		dst = resp.AppendInt(resp.AppendBulk(dst, name), p.Counts[i*len(p.Columns)+n])
	}
	dst = resp.AppendMap(resp.AppendBulk(dst, "notices"), len(p.Channels), resp3)
	for n, name := range p.Channels {
		dst = resp.AppendInt(resp.AppendBulk(dst, name), p.Notices[i*len(p.Channels)+n])
	}
	dst = resp.AppendMap(resp.AppendBulk(dst, "dots"), len(p.Dots), resp3)
	for n, name := range p.Dots {
		dst = resp.AppendTruth(resp.AppendBulk(dst, name), p.Shown[i*len(p.Dots)+n])
	}
	return resp.AppendInt(resp.AppendBulk(dst, "feed"), p.Feeds[i])
}
