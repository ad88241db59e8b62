package webhook

import (
	"encoding/base64"
	"strings"
	"testing"
	"time"
)

func TestEncode(t *testing.T) {
	at := time.Date(2026, 11, 21, 13, 30, 0, 250e6, time.FixedZone("", 3600))
	data := struct {
		Text string `json:"text"`
		Code string `json:"code,omitempty"`
	}{Text: "a<b & ☕"}
	want := `{"id":"e-1","type":"run.completed","data":{"text":"a<b & ☕"},"created_at":"2026-11-21T12:30:00.25Z"}`
	if got := string(Encode("e-1", RunCompleted, data, at)); got != want {
		t.Errorf("encoded %s\nwant    %s", got, want)
	}
}

func TestSecrets(t *testing.T) {
	a, b := NewSecret(), NewSecret()
	if a == b {
		t.Error("two secrets are the same")
	}
	rest, ok := strings.CutPrefix(a, "whsec_")
	if raw, err := base64.RawURLEncoding.DecodeString(rest); !ok || err != nil || len(raw) != 32 {
		t.Errorf("a secret of %d bytes: %v", len(raw), err)
	}
}
