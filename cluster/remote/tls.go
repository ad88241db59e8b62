package remote

import (
	"crypto/ed25519"
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"errors"
	"fmt"
	"math/big"
	"time"
)

// MinSecret is the minimum length of a cluster's secret in characters.
const MinSecret = 32

// keyInfo separates the key from other keys derived from the secret.
const keyInfo = "agentsvc cluster transport key 1"

var errStranger = errors.New("remote: the other side does not hold the cluster's key")

// NameOf returns a name of a secret, so that members can compare theirs. It reveals nothing
// else about the secret.
func NameOf(secret string) (string, error) {
	name, err := hkdf.Key(sha256.New, []byte(secret), nil, "agentsvc cluster secret name 1", 8)
	if err != nil {
		return "", fmt.Errorf("name the cluster's secret: %w", err)
	}
	return hex.EncodeToString(name), nil
}

// configs returns the TLS configurations of both sides. Only the key matters: each process
// makes its own certificate, because TLS requires one.
func configs(secret string) (server, client *tls.Config, err error) {
	if len(secret) < MinSecret {
		return nil, nil, fmt.Errorf("remote: the cluster's secret has fewer than %d characters", MinSecret)
	}
	seed, err := hkdf.Key(sha256.New, []byte(secret), nil, keyInfo, ed25519.SeedSize)
	if err != nil {
		return nil, nil, fmt.Errorf("derive the cluster's key: %w", err)
	}
	key := ed25519.NewKeyFromSeed(seed)
	public := key.Public().(ed25519.PublicKey)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1),
		Subject:      pkix.Name{CommonName: "cluster member"},
		NotBefore:    time.Unix(0, 0),
		NotAfter:     time.Date(9999, 12, 31, 23, 59, 59, 0, time.UTC),
		KeyUsage:     x509.KeyUsageDigitalSignature,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, public, key)
	if err != nil {
		return nil, nil, fmt.Errorf("make the cluster's certificate: %w", err)
	}
	base := &tls.Config{
		MinVersion:             tls.VersionTLS13,
		Certificates:           []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}},
		NextProtos:             []string{"h2"},
		SessionTicketsDisabled: true,
		// TLS proves that the other side holds the key of its certificate; this checks that
		// the key is ours.
		VerifyConnection: func(s tls.ConnectionState) error {
			if len(s.PeerCertificates) == 0 {
				return errStranger
			}
			theirs, ok := s.PeerCertificates[0].PublicKey.(ed25519.PublicKey)
			if !ok || subtle.ConstantTimeCompare(theirs, public) != 1 {
				return errStranger
			}
			return nil
		},
	}
	server, client = base.Clone(), base.Clone()
	server.ClientAuth = tls.RequireAnyClientCert
	client.InsecureSkipVerify = true // names and authorities do not matter; VerifyConnection decides
	return server, client, nil
}
