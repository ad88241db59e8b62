// Package webhook defines webhook deliveries for both sides (service.md, Events, Webhooks):
// the catalog of events, subscriptions, the pauses between attempts, and the signature. It
// depends only on the standard library, so that a receiver may import it for Verify alone.
package webhook

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"strconv"
	"strings"
	"time"
)

// Headers of a delivery.
const (
	SignatureHeader = "Svc-Signature"
	DeliveryHeader  = "Svc-Delivery-Id"
)

// ReplayWindow is how far the time of a signature may differ from the receiver's clock,
// either way.
const ReplayWindow = 300 * time.Second

// mostDigits limits the length of a time, so that it fits the numbers of every language.
const mostDigits = 15

// Why a delivery must not be trusted, in the order of the checks.
var (
	ErrMalformedHeader   = errors.New("MALFORMED_HEADER")
	ErrStaleTimestamp    = errors.New("STALE_TIMESTAMP")
	ErrSignatureMismatch = errors.New("SIGNATURE_MISMATCH")
)

// Sign returns the signature header of body, sent at a time, with an endpoint's secret:
// t=<unix seconds>,v1=<64 lowercase hex>.
func Sign(secret string, at time.Time, body []byte) string {
	t := strconv.FormatInt(at.Unix(), 10)
	return "t=" + t + ",v1=" + hex.EncodeToString(mac(secret, t, body))
}

// Verify checks a delivery's signature header against the raw body, as received, and the
// endpoint's secret. It returns ErrMalformedHeader, ErrStaleTimestamp or
// ErrSignatureMismatch. Parts of the header other than t and v1 are ignored; of several v1
// one must match. An empty secret matches nothing.
func Verify(secret, header string, body []byte, now time.Time) error {
	var times []string
	var sums [][]byte
	for part := range strings.SplitSeq(header, ",") {
		name, value, ok := strings.Cut(strings.TrimSpace(part), "=")
		if !ok {
			return ErrMalformedHeader
		}
		switch name {
		case "t":
			times = append(times, value)
		case "v1":
			sum, err := hex.DecodeString(value)
			if err != nil || len(sum) != sha256.Size || strings.ToLower(value) != value {
				return ErrMalformedHeader
			}
			sums = append(sums, sum)
		}
	}
	if len(times) != 1 || len(sums) == 0 {
		return ErrMalformedHeader
	}
	t := times[0]
	at, err := strconv.ParseUint(t, 10, 64) // accepts digits only, without sign or separators
	if err != nil || len(t) > mostDigits {
		return ErrMalformedHeader
	}
	if off := int64(at) - now.Unix(); off < -int64(ReplayWindow/time.Second) || off > int64(ReplayWindow/time.Second) {
		return ErrStaleTimestamp
	}
	want := mac(secret, t, body)
	fits := false
	for _, sum := range sums {
		fits = hmac.Equal(sum, want) || fits
	}
	// A receiver started without its secret must not accept what anyone can sign.
	if !fits || secret == "" {
		return ErrSignatureMismatch
	}
	return nil
}

func mac(secret, t string, body []byte) []byte {
	h := hmac.New(sha256.New, []byte(secret))
	h.Write([]byte(t))
	h.Write([]byte{'.'})
	h.Write(body)
	return h.Sum(nil)
}
