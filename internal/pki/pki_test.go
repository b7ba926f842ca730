package pki

import (
	"crypto/x509"
	"encoding/pem"
	"errors"
	"testing"
	"time"
)

func parsed(t *testing.T, p Pair) *x509.Certificate {
	t.Helper()
	block, _ := pem.Decode(p.Cert)
	c, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestIssue(t *testing.T) {
	end := time.Now().Add(time.Hour)
	ca, err := NewCA("ca", end)
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AddCert(parsed(t, ca))
	for _, tc := range []struct {
		name           string
		leaf           Leaf
		server, client bool
	}{
		{"node", Leaf{Name: "n1", Hosts: []string{"10.0.0.1", "n1.example"}, Node: true, NotAfter: end.Add(time.Hour)}, true, true},
		{"client", Leaf{Name: "alice", NotAfter: end}, false, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			pair, err := Issue(ca, tc.leaf)
			if err != nil {
				t.Fatal(err)
			}
			c := parsed(t, pair)
			for usage, want := range map[x509.ExtKeyUsage]bool{x509.ExtKeyUsageServerAuth: tc.server, x509.ExtKeyUsageClientAuth: tc.client} {
				_, err := c.Verify(x509.VerifyOptions{Roots: roots, KeyUsages: []x509.ExtKeyUsage{usage}})
				if (err == nil) != want {
					t.Errorf("usage %d: %v", usage, err)
				}
			}
			if c.NotAfter.After(end) {
				t.Errorf("it ends at %v, after its authority, %v", c.NotAfter, end)
			}
			for _, host := range append(tc.leaf.Hosts, tc.leaf.Name) {
				if err := c.VerifyHostname(host); err != nil {
					t.Error(err)
				}
			}
		})
	}
}

func TestIssueRefuses(t *testing.T) {
	end := time.Now().Add(time.Hour)
	ca, err := NewCA("ca", end)
	if err != nil {
		t.Fatal(err)
	}
	other, err := NewCA("other", end)
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := Issue(ca, Leaf{Name: "n1", NotAfter: end})
	if err != nil {
		t.Fatal(err)
	}
	for name, bad := range map[string]Pair{
		"nothing":           {},
		"another's key":     {Cert: ca.Cert, Key: other.Key},
		"not an authority":  leaf,
		"no key":            {Cert: ca.Cert, Key: ca.Cert},
		"a key for a cert":  {Cert: ca.Key, Key: ca.Key},
		"not a certificate": {Cert: pem.EncodeToMemory(&pem.Block{Type: blockCertificate, Bytes: []byte("x")}), Key: ca.Key},
	} {
		if _, err := Issue(bad, Leaf{Name: "n2", NotAfter: end}); !errors.Is(err, ErrBadAuthority) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := Issue(ca, Leaf{Name: "n2", NotAfter: time.Now().Add(-time.Hour)}); err == nil {
		t.Error("signed a certificate that ends before it begins")
	}
}
