package webhook_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"time"

	"agentsvc/schemas/webhook"
)

// Receiver takes deliveries signed with Secret and hands each event to Handle once.
type Receiver struct {
	Secret string
	Handle func(webhook.Envelope) error

	mu   sync.Mutex
	seen map[string]bool // yours: a table with a unique column, written together with what the event changes
}

func (r *Receiver) ServeHTTP(w http.ResponseWriter, q *http.Request) {
	body, err := io.ReadAll(http.MaxBytesReader(w, q.Body, 16<<20))
	if err != nil {
		http.Error(w, "the body could not be read", http.StatusBadRequest)
		return
	}
	if err := webhook.Verify(r.Secret, q.Header.Get(webhook.SignatureHeader), body, time.Now()); err != nil {
		http.Error(w, err.Error(), http.StatusUnauthorized)
		return
	}
	var event webhook.Envelope
	if err := json.Unmarshal(body, &event); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.seen[event.ID] {
		return // 200: a duplicate is good news
	}
	if err := r.Handle(event); err != nil {
		http.Error(w, "not now", http.StatusServiceUnavailable) // it comes again
		return
	}
	if r.seen == nil {
		r.seen = map[string]bool{}
	}
	r.seen[event.ID] = true
}

// A receiver of deliveries: the raw body is verified before anything is read from
// it, and an event that comes twice is handled once.
func Example() {
	secret := webhook.NewSecret()
	server := httptest.NewServer(&Receiver{Secret: secret, Handle: func(e webhook.Envelope) error {
		fmt.Println("handled", e.Type)
		return nil
	}})
	defer server.Close()

	body := webhook.Encode("01a1fe17-417d-79d2-9d31-8af8cd3d8753", webhook.RunCompleted, map[string]string{"status": "succeeded"}, time.Now())
	send := func(secret string) {
		q, err := http.NewRequest("POST", server.URL, strings.NewReader(string(body)))
		if err != nil {
			panic(err)
		}
		q.Header.Set(webhook.SignatureHeader, webhook.Sign(secret, time.Now(), body))
		answer, err := http.DefaultClient.Do(q)
		if err != nil {
			panic(err)
		}
		defer answer.Body.Close()
		said, err := io.ReadAll(answer.Body)
		if err != nil {
			panic(err)
		}
		fmt.Println(strings.TrimSpace(answer.Status + ": " + string(said)))
	}
	send(secret)
	send(secret)
	send("whsec_of_somebody_else")
	// Output:
	// handled run.completed
	// 200 OK:
	// 200 OK:
	// 401 Unauthorized: SIGNATURE_MISMATCH
}

func ExampleVerify() {
	const secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
	body := []byte(`{"id":"1","type":"webhook.test"}`)
	sent := time.Unix(1_700_000_000, 0)
	header := webhook.Sign(secret, sent, body)

	fmt.Println(webhook.Verify(secret, header, body, sent))
	fmt.Println(webhook.Verify(secret, "v1=abc", body, sent))
	fmt.Println(webhook.Verify(secret, header, body, sent.Add(webhook.ReplayWindow+time.Second)))
	err := webhook.Verify("whsec_other", header, body, sent)
	fmt.Println(err, errors.Is(err, webhook.ErrSignatureMismatch))
	// Output:
	// <nil>
	// MALFORMED_HEADER
	// STALE_TIMESTAMP
	// SIGNATURE_MISMATCH true
}
