//go:build !linux

package clustertest

import (
	"errors"
	"testing"
)

func newNamespaces(testing.TB) (network, error) {
	return nil, errors.New("this system has none")
}
