package social

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/countd/countd/cmd/countctl/internal/cli"
	"github.com/countd/countd/cmd/countctl/internal/clitest"
)

// TestBadIDsAreNamed checks that the error of a bad id says which argument it is.
func TestBadIDsAreNamed(t *testing.T) {
	server := httptest.NewServer(http.NotFoundHandler())
	defer server.Close()
	i := clitest.New(t, server.URL, Commands)
	for line, want := range map[string]string{
		"outbox add x 1":         `the author "x"`,
		"outbox add 1 x":         `the post "x"`,
		"outbox remove 1 1.5":    `the post "1.5"`,
		"outbox list x":          `the author "x"`,
		"feed reset 1 --up-to x": `the post "x"`,
		"feed follow x 1":        `the user "x"`,
	} {
		if got := i.Run(strings.Fields(line)...); got.Code != cli.ExitUsage || !strings.Contains(got.Err, want) {
			t.Errorf("%s: exit %d, want %d with %s: %s", line, got.Code, cli.ExitUsage, want, got.Err)
		}
	}
}
