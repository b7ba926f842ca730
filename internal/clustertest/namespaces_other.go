//go:build !linux

package clustertest

import (
	"errors"
	"testing"

	"github.com/countd/countd/internal/proctest"
)

func newNamespaces(testing.TB) ([]proctest.Site, func([][]int) error, error) {
	return nil, nil, errors.New("this system has none")
}
