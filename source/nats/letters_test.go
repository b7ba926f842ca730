package nats

import (
	"testing"

	"github.com/countd/countd/source/brokertest"
)

func TestMissingLetters(t *testing.T) {
	t.Parallel()
	q, _ := newQueue(t)
	brokertest.MissingLetters(t, q, "nobody.takes")
}
