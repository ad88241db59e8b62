// Package webhook is what a webhook delivery is to both of its sides (service.md,
// Events, Webhooks): the catalog of events, which endpoint hears of which, when a
// failed attempt is repeated, and the signature. It has no dependency outside the
// standard library, so that a receiver may import it for Verify alone.
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

// ReplayWindow is how far the time of a signature may be from the receiver's
// clock, either way.
const ReplayWindow = 300 * time.Second

// mostDigits is how long a time is at most, so that every language's numbers hold it.
const mostDigits = 15

// Why a delivery is not to be trusted, in the order in which it is looked for.
var (
	ErrMalformedHeader   = errors.New("MALFORMED_HEADER")
	ErrStaleTimestamp    = errors.New("STALE_TIMESTAMP")
	ErrSignatureMismatch = errors.New("SIGNATURE_MISMATCH")
)

// Sign is the signature header of body, sent at a time, with an endpoint's secret:
// t=<unix seconds>,v1=<64 lowercase hex>.
func Sign(secret string, at time.Time, body []byte) string {
	t := strconv.FormatInt(at.Unix(), 10)
	return "t=" + t + ",v1=" + hex.EncodeToString(mac(secret, t, body))
}

// Verify checks a delivery's signature header against the raw body, as it was
// received, and the endpoint's secret. It answers ErrMalformedHeader,
// ErrStaleTimestamp or ErrSignatureMismatch. Parts of the header other than t and
// v1 are not looked at; of several v1 one has to fit. An empty secret fits nothing.
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
	at, err := strconv.ParseUint(t, 10, 64) // takes digits alone: no sign, no marks between them
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
	// A receiver that was started without its secret must not take what anybody can sign.
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
