// Package pki makes certificates: an authority, and the certificates of nodes and clients that it
// signs. It is for operators without a PKI of their own, and for tests.
//
// It writes no file and keeps no list of signed certificates, so it cannot revoke any. Invariant: a
// certificate of a client can never pass as the certificate of a node, because it is valid only for
// clients.
package pki

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"time"
)

const (
	blockCertificate = "CERTIFICATE"
	blockKey         = "PRIVATE KEY"
	// backdate lets a machine whose clock is behind use a new certificate at once.
	backdate   = 5 * time.Minute
	serialBits = 127
)

// ErrBadAuthority is returned for an authority that cannot sign.
var ErrBadAuthority = errors.New("not a certificate authority with its key")

// Pair is a certificate and its key, both in PEM.
type Pair struct {
	Cert, Key []byte
	NotAfter  time.Time // end of validity; set only by this package
}

// Leaf describes a certificate to sign.
type Leaf struct {
	Name  string   // the common name; also a DNS name
	Hosts []string // further DNS names and IP addresses
	Node  bool     // valid for servers and clients; otherwise only for clients
	// NotBefore is the time at which the certificate becomes valid. The zero time stands
	// for the current time minus the constant backdate. The certificate ends at NotAfter,
	// or with its authority if that is earlier.
	NotBefore, NotAfter time.Time
}

// NewCA returns a new, self-signed authority.
func NewCA(name string, notAfter time.Time) (Pair, error) {
	template, err := newTemplate(name, time.Time{}, notAfter)
	if err != nil {
		return Pair{}, err
	}
	template.IsCA, template.BasicConstraintsValid = true, true
	template.MaxPathLenZero = true // the CA signs no further authorities
	template.KeyUsage = x509.KeyUsageCertSign | x509.KeyUsageCRLSign
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return Pair{}, fmt.Errorf("cannot make a key: %w", err)
	}
	return sign(template, template, key, key)
}

// Issue returns a new certificate, signed by the authority ca.
func Issue(ca Pair, leaf Leaf) (Pair, error) {
	parent, signer, err := parse(ca)
	if err != nil {
		return Pair{}, err
	}
	end := leaf.NotAfter
	if parent.NotAfter.Before(end) {
		end = parent.NotAfter
	}
	template, err := newTemplate(leaf.Name, leaf.NotBefore, end)
	if err != nil {
		return Pair{}, err
	}
	template.KeyUsage = x509.KeyUsageDigitalSignature
	template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
	if leaf.Node {
		template.ExtKeyUsage = append(template.ExtKeyUsage, x509.ExtKeyUsageServerAuth)
	}
	template.DNSNames = []string{leaf.Name}
	for _, host := range leaf.Hosts {
		if ip := net.ParseIP(host); ip != nil {
			template.IPAddresses = append(template.IPAddresses, ip)
		} else if host != leaf.Name {
			template.DNSNames = append(template.DNSNames, host)
		}
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return Pair{}, fmt.Errorf("cannot make a key: %w", err)
	}
	return sign(template, parent, key, signer)
}

func newTemplate(name string, begin, end time.Time) (*x509.Certificate, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), serialBits))
	if err != nil {
		return nil, fmt.Errorf("cannot make a serial number: %w", err)
	}
	if begin.IsZero() {
		begin = time.Now().Add(-backdate)
	}
	if !begin.Before(end) {
		return nil, fmt.Errorf("the certificate of %q would end at %s, before it begins", name, end.UTC().Format(time.RFC3339))
	}
	return &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: name, Organization: []string{"countd"}}, NotBefore: begin, NotAfter: end,
	}, nil
}

func sign(template, parent *x509.Certificate, key, signer *ecdsa.PrivateKey) (Pair, error) {
	der, err := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, signer)
	if err != nil {
		return Pair{}, fmt.Errorf("cannot sign the certificate of %q: %w", template.Subject.CommonName, err)
	}
	raw, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return Pair{}, fmt.Errorf("cannot encode a key: %w", err)
	}
	return Pair{
		Cert: pem.EncodeToMemory(&pem.Block{Type: blockCertificate, Bytes: der}),
		Key:  pem.EncodeToMemory(&pem.Block{Type: blockKey, Bytes: raw}),

		NotAfter: template.NotAfter,
	}, nil
}

// parse parses an authority that NewCA returned. Every error wraps ErrBadAuthority.
func parse(ca Pair) (*x509.Certificate, *ecdsa.PrivateKey, error) {
	block, _ := pem.Decode(ca.Cert)
	if block == nil || block.Type != blockCertificate {
		return nil, nil, fmt.Errorf("%w: no certificate in PEM", ErrBadAuthority)
	}
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return nil, nil, fmt.Errorf("%w: %w", ErrBadAuthority, err)
	}
	if block, _ = pem.Decode(ca.Key); block == nil {
		return nil, nil, fmt.Errorf("%w: no key in PEM", ErrBadAuthority)
	}
	parsed, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return nil, nil, fmt.Errorf("%w: cannot read its key: %w", ErrBadAuthority, err)
	}
	key, ok := parsed.(*ecdsa.PrivateKey)
	switch {
	case !ok || !key.PublicKey.Equal(cert.PublicKey):
		return nil, nil, fmt.Errorf("%w: the key is another's", ErrBadAuthority)
	case !cert.IsCA:
		return nil, nil, fmt.Errorf("%w: %q may not sign others", ErrBadAuthority, cert.Subject.CommonName)
	}
	return cert, key, nil
}
