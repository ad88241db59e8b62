package model

// Repair makes a conversation acceptable to every provider: each call is answered directly
// after the message that made it, and there are no other results. A call without a result (a
// user's message came instead, or the history was cut) gets a failed result that says so. A
// result without its call is dropped, and so is an empty message. A valid conversation is
// returned as it is; ms is never changed.
func Repair(ms []Message) []Message {
	if inOrder(ms) {
		return ms
	}
	out := make([]Message, 0, len(ms)+1)
	for i := 0; i < len(ms); i++ {
		m := ms[i]
		switch {
		case m.Role == Tool: // its calls are gone; results with calls are consumed below
		case m.Role == Assistant && len(m.Calls) > 0:
			out = append(out, m)
			answers := make(map[string]CallResult, len(m.Calls))
			j := i + 1
			for ; j < len(ms) && ms[j].Role == Tool; j++ {
				for _, r := range ms[j].Results {
					answers[r.CallID] = r
				}
			}
			res := Message{Role: Tool, Results: make([]CallResult, len(m.Calls))}
			for k, c := range m.Calls {
				r, ok := answers[c.ID]
				if !ok {
					r = CallResult{CallID: c.ID, Content: NoResult, IsError: true}
				}
				res.Results[k] = r
			}
			out = append(out, res)
			i = j - 1
		case m.Text != "":
			out = append(out, m)
		}
	}
	return out
}

// NoResult is the result of a call that was never answered.
const NoResult = `{"error":"NO_RESULT","message":"The call was not carried out."}`

func inOrder(ms []Message) bool {
	for i := 0; i < len(ms); i++ {
		m := &ms[i]
		switch {
		case m.Role == Tool:
			return false
		case m.Role == Assistant && len(m.Calls) > 0:
			if i+1 == len(ms) || ms[i+1].Role != Tool || len(ms[i+1].Results) != len(m.Calls) {
				return false
			}
			for k, r := range ms[i+1].Results {
				if r.CallID != m.Calls[k].ID {
					return false
				}
			}
			i++
		case m.Text == "":
			return false
		}
	}
	return true
}
