package browser

import "testing"

// record is a TLS record of n bytes.
func record(kind byte, n int) []byte {
	return append([]byte{kind, 3, 3, byte(n >> 8), byte(n)}, make([]byte, n)...)
}

// A handshake, and the alert after a certificate that is refused, are no request; the first request is one, in
// whatever pieces it comes.
func TestAHandshakeIsNoRequest(t *testing.T) {
	t.Parallel()
	const handshake, change, alert, data = 22, 20, 21, 23
	for _, row := range []struct {
		name string
		sent [][]byte
		want bool
	}{
		{"nothing", nil, false},
		{"a hello", [][]byte{record(handshake, 1800)}, false},
		{"TLS 1.2, refused", [][]byte{record(handshake, 500), record(handshake, 40), record(alert, 26)}, false},
		{"TLS 1.3 to its end, refused", [][]byte{record(handshake, 500), record(change, 1), record(data, 69), record(data, 19)}, false},
		{"and a request", [][]byte{record(handshake, 500), record(change, 1), record(data, 69), record(data, 300)}, true},
		{"of TLS 1.2", [][]byte{record(handshake, 500), record(handshake, 40), record(data, 300)}, true},
		{"the frames that begin HTTP/2, and a request", [][]byte{record(handshake, 500), record(data, 53), record(data, 60), record(data, 40)}, true},
		{"no TLS", [][]byte{[]byte("GET / HTTP/1.1\r\n")}, true},
	} {
		for _, piece := range []int{1, 7, 1 << 20} {
			var r records
			got := false
			for _, b := range row.sent {
				for len(b) > 0 {
					n := min(piece, len(b))
					got, b = r.request(b[:n]), b[n:]
				}
			}
			if got != row.want {
				t.Errorf("%s, in pieces of %d: %v", row.name, piece, got)
			}
		}
	}
}

// What a site sends while a request waits: an answer, an alert, or neither.
func TestAnAlertIsNoAnswer(t *testing.T) {
	t.Parallel()
	const handshake, alert, data = 22, 21, 23
	for _, row := range []struct {
		name          string
		sent          []byte
		answer, ended bool
	}{
		{"the head of an answer", record(data, 140), true, false},
		{"an alert of TLS 1.3", record(data, 19), false, true},
		{"an alert of TLS 1.2", record(alert, 26), false, true},
		{"a changed key", record(data, 22), false, false},
		{"an acknowledgement of HTTP/2", record(data, 26), false, false},
		{"an answer and an alert", append(record(data, 140), record(data, 19)...), true, true},
	} {
		for _, piece := range []int{1, 7, 1 << 20} {
			r := records{}
			r.answer(record(handshake, 90))
			answer := false
			for b := row.sent; len(b) > 0; {
				n := min(piece, len(b))
				answer = r.answer(b[:n]) || answer
				b = b[n:]
			}
			if answer != row.answer || r.ended != row.ended {
				t.Errorf("%s, in pieces of %d: answer %v, ended %v", row.name, piece, answer, r.ended)
			}
		}
	}
}
