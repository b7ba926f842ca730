package api

import (
	"bytes"
	"cmp"
	"fmt"

	"github.com/valyala/fasthttp"

	"github.com/countd/countd/api/operate"
	"github.com/countd/countd/auth"
	"github.com/countd/countd/inbox"
	"github.com/countd/countd/internal/strictjson"
)

// pollRoutes are the calls that return everything new for a user.
func pollRoutes() []route {
	read := auth.Read.On(inbox.PollReads()...)
	return []route{
		{"GET /v1/poll/{user}", "poll", does{takesRead | takesUser | takesNames, read, poll}},
		{"POST /v1/poll", "polls", does{takesRead | takesBody | takesUnread, read, polls}},
	}
}

// poll answers the whole poll of one user.
func poll(s *Server, ctx *fasthttp.RequestCtx, r *request) error {
	p := &r.poll
	if err := named(&r.texts); err != nil {
		return err
	}
	p.Users = append(p.Users[:0], r.id)
	if err := s.node().unread.Poll(p, &r.read); err != nil {
		return fmt.Errorf("cannot poll: %w", err)
	}
	answer(ctx, func(dst []byte) []byte { return append(appendPoll(append(dst, '{'), p, 0), '}') })
	return nil
}

// polls answers the poll of several users.
func polls(s *Server, ctx *fasthttp.RequestCtx, r *request) error {
	p := &r.poll
	if err := cmp.Or(r.decodePoll(ctx.Request.Body()), named(&r.texts)); err != nil {
		return err
	}
	if err := s.node().unread.Poll(p, &r.read); err != nil {
		return fmt.Errorf("cannot poll: %w", err)
	}
	userBytes := 96 + 16*(len(p.Columns)+len(p.Channels)+len(p.Dots))
	answerLong(ctx, userBytes*len(p.Users), func(dst []byte) []byte {
		dst = append(dst, `{"results":[`...)
		for i, user := range p.Users {
			dst = r.texts.Append(append(comma(dst, i), `{"user":`...), listSlot+i, user)
			dst = append(appendPoll(append(dst, ','), p, i), '}')
		}
		return append(dst, `]}`...)
	})
	return nil
}

// appendPoll appends the JSON fields of the poll of user i. Names need no escaping.
func appendPoll(dst []byte, p *inbox.Poll, i int) []byte {
	parts := p.Parts()
	for n := range parts {
		part := &parts[n]
		if dst = comma(dst, n); part.One {
			dst = appendNumber(dst, part.Name, part.Numbers[i])
			continue
		}
		dst = append(append(append(dst, '"'), part.Name...), `":{`...)
		for at, name := range part.Names {
			dst = comma(dst, at)
			if at += i * len(part.Names); part.Truths != nil {
				dst = appendBool(dst, name, part.Truths[at])
			} else {
				dst = appendNumber(dst, name, part.Numbers[at])
			}
		}
		dst = append(dst, '}')
	}
	return dst
}

// decodePoll reads {"users":[…],"channels":[…]?,"dots":[…]?} into r.poll.
func (r *request) decodePoll(body []byte) error {
	known := []string{"users", "channels", "dots"}
	p := &r.poll
	p.Channels, p.Dots = p.Channels[:0], p.Dots[:0]
	s, err := r.members(body, known, func(_ *cursor, member int) {
		switch member {
		case 0:
			r.decodeIDs("users", namesOf(r.keyspace), 0, inbox.PollUsersMax)
		case 1:
			p.Channels = r.decodeNameList(p.Channels, "channels")
		case 2:
			p.Dots = r.decodeNameList(p.Dots, "dots")
		}
	})
	if err == nil && !s.has(0) {
		err = invalid("users", strictjson.Missing)
	}
	if err == nil && len(r.ids) == 0 {
		err = invalid("users", "at least one is needed")
	}
	p.Users = append(p.Users[:0], r.ids...)
	return err
}

// decodeNameList reads the names of channels or dots.
func (r *request) decodeNameList(names []string, path string) []string {
	c := &r.cursor
	if !c.Begin('[') {
		c.Fail(path, strictjson.NotArray)
	}
	for n := 0; c.Next(n, ']'); n++ {
		if c.Peek() != '"' {
			c.Fail(fmt.Sprintf("%s[%d]", path, n), strictjson.NotString)
			return names
		}
		var problem string
		if names, problem = inbox.AppendName(names, c.Str()); problem != "" {
			c.Fail(fmt.Sprintf("%s[%d]", path, n), problem)
			return names
		}
	}
	return names
}

// namesIn parses names that are separated by commas.
func namesIn(names []string, path string, text []byte) ([]string, error) {
	names = names[:0]
	if len(text) == 0 {
		return names, nil
	}
	for name := range bytes.SplitSeq(text, []byte(",")) {
		var problem string
		if names, problem = inbox.AppendName(names, name); problem != "" {
			return names, invalid(path, operate.Shown(name)+": "+problem)
		}
	}
	return names, nil
}
