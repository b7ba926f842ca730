package kafka

import (
	"testing"

	"github.com/countd/countd/source/brokertest"
)

func TestMissingLetters(t *testing.T) {
	t.Parallel()
	brokertest.MissingLetters(t, newCluster(t, nil).queue(), "likes.nobody")
}
