package redact

import "strings"

// pattern is a text that is searched for by the algorithm of Knuth, Morris and
// Pratt. strings.Index can take time of the text's length by the pattern's where a
// text almost matches at many places.
type pattern struct {
	text string
	// back is, for each count of bytes that fit, how many still fit where the last one
	// of them ends, with a later start.
	back []int32
}

func newPattern(text string) *pattern {
	p := &pattern{text: text, back: make([]int32, len(text)+1)}
	fit := 0
	for i := 1; i < len(text); i++ {
		for fit > 0 && text[i] != text[fit] {
			fit = int(p.back[fit])
		}
		if text[i] == text[fit] {
			fit++
		}
		p.back[i+1] = int32(fit)
	}
	return p
}

// search is the search for one pattern. It passes over the text once.
type search struct {
	*pattern
	in    string
	at    int // the first byte that was not looked at
	fit   int // bytes of the pattern that fit before at
	from  int // the find
	steps int
}

// next goes to the next find, which may overlap the one before; false is the end.
func (s *search) next() bool {
	for s.at < len(s.in) {
		s.steps++
		if s.fit == 0 {
			skip := strings.IndexByte(s.in[s.at:], s.text[0])
			if skip < 0 {
				break
			}
			s.at += skip + 1
			s.fit = 1
		} else {
			c := s.in[s.at]
			for s.fit > 0 && s.text[s.fit] != c {
				s.fit = int(s.back[s.fit])
				s.steps++
			}
			if s.fit == 0 {
				continue // the byte may be the first one
			}
			s.fit++
			s.at++
		}
		if s.fit == len(s.text) {
			s.from = s.at - s.fit
			s.fit = int(s.back[s.fit])
			return true
		}
	}
	s.at = len(s.in)
	return false
}

// finder finds several patterns in a text: the first find wins, then the pattern
// that is first in the list.
type finder struct {
	searches []search // those that have a find ahead
	end      int      // of the last find
}

func newFinder(patterns []*pattern, in string) *finder {
	f := &finder{}
	for _, p := range patterns {
		if s := (search{pattern: p, in: in}); s.next() {
			f.searches = append(f.searches, s)
		}
	}
	return f
}

// next is the next find behind the last one.
func (f *finder) next() (from, to int, ok bool) {
	ahead := f.searches[:0]
	for _, s := range f.searches {
		more := true
		for more && s.from < f.end {
			more = s.next()
		}
		if !more {
			continue
		}
		ahead = append(ahead, s)
		if !ok || s.from < from {
			from, to, ok = s.from, s.from+len(s.text), true
		}
	}
	f.searches, f.end = ahead, to
	return from, to, ok
}
