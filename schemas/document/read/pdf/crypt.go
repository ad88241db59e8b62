package pdf

import (
	"bytes"
	"crypto/aes"
	"crypto/cipher"
	"crypto/md5"
	"crypto/rc4"
	"crypto/sha256"
	"crypto/sha512"
	"encoding/binary"
)

// crypt decrypts the strings and streams of a file that opens with an empty password: such
// files forbid printing or changes, and not reading.
type crypt struct {
	key     []byte
	streams string // method: "", "V2", "AESV2", "AESV3"
	texts   string
}

var padding = []byte("\x28\xBF\x4E\x5E\x4E\x75\x8A\x41\x64\x00\x4E\x56\xFF\xFA\x01\x08\x2E\x2E\x00\xB6\xD0\x68\x3E\x80\x2F\x0C\xA9\xFE\x64\x53\x69\x7A")

// openCrypt makes d.crypt if the file is encrypted.
func (d *Doc) openCrypt() error {
	if d.crypt != nil || d.trailer["Encrypt"] == nil {
		return nil
	}
	e, _ := d.resolve(d.trailer["Encrypt"]).(dict)
	if e == nil {
		return ErrDamaged
	}
	if f := d.resolve(e["Filter"]); f != name("Standard") {
		return ErrPassword
	}
	v, _ := integer(d.resolve(e["V"]))
	r, _ := integer(d.resolve(e["R"]))
	length, ok := integer(d.resolve(e["Length"]))
	if !ok || length < 40 || length > 256 {
		length = 40
	}
	o, _ := d.resolve(e["O"]).(string)
	u, _ := d.resolve(e["U"]).(string)
	p, _ := integer(d.resolve(e["P"]))
	c := &crypt{streams: "V2", texts: "V2"}
	if v >= 4 {
		cf, _ := d.resolve(e["CF"]).(dict)
		method := func(key name) string {
			n, _ := d.resolve(e[key]).(name)
			if n == "" || n == "Identity" {
				return ""
			}
			f, _ := d.resolve(cf[n]).(dict)
			m, _ := d.resolve(f["CFM"]).(name)
			if m == "None" {
				return ""
			}
			return string(m)
		}
		c.streams, c.texts = method("StmF"), method("StrF")
		if v == 4 {
			length = 128
		}
	}
	if v >= 5 {
		key, ok := newKey(r, []byte(u), d.resolve(e["UE"]))
		if !ok {
			return ErrPassword
		}
		c.key = key
		d.setCrypt(c)
		return nil
	}
	if len(o) < 32 || len(u) < 16 {
		return ErrDamaged
	}
	ids, _ := d.resolve(d.trailer["ID"]).(array)
	id, _ := d.resolve(first(ids)).(string)
	h := md5.New()
	h.Write(padding)
	h.Write([]byte(o)[:32])
	var perm [4]byte
	binary.LittleEndian.PutUint32(perm[:], uint32(int64(p)))
	h.Write(perm[:])
	h.Write([]byte(id))
	if r >= 4 && d.resolve(e["EncryptMetadata"]) == false {
		h.Write([]byte{0xff, 0xff, 0xff, 0xff})
	}
	key := h.Sum(nil)
	n := 5
	if r >= 3 {
		n = min(16, length/8)
		for range 50 {
			sum := md5.Sum(key[:n])
			key = sum[:]
		}
	}
	c.key = key[:n]
	if !c.opens(r, u, id) {
		return ErrPassword
	}
	d.setCrypt(c)
	return nil
}

// setCrypt forgets what was read before strings could be decrypted.
func (d *Doc) setCrypt(c *crypt) {
	d.crypt = c
	clear(d.cache)
	clear(d.packed)
}

// opens reports whether the empty password is the user's.
func (c *crypt) opens(r int, u, id string) bool {
	if r == 2 {
		out := make([]byte, 32)
		rc, err := rc4.NewCipher(c.key)
		if err != nil {
			return false
		}
		rc.XORKeyStream(out, padding)
		return len(u) >= 32 && bytes.Equal(out, []byte(u)[:32])
	}
	h := md5.New()
	h.Write(padding)
	h.Write([]byte(id))
	out := h.Sum(nil)
	for i := range 20 {
		key := make([]byte, len(c.key))
		for j := range key {
			key[j] = c.key[j] ^ byte(i)
		}
		rc, err := rc4.NewCipher(key)
		if err != nil {
			return false
		}
		rc.XORKeyStream(out, out)
	}
	return bytes.Equal(out, []byte(u)[:16])
}

// newKey returns the key of a file with AES-256 whose user's password is empty.
func newKey(r int, u []byte, encrypted object) ([]byte, bool) {
	ue, _ := encrypted.(string)
	if len(u) < 48 || len(ue) < 32 {
		return nil, false
	}
	hash := func(salt []byte) []byte {
		sum := sha256.Sum256(salt)
		if r < 6 {
			return sum[:]
		}
		return hardened(sum[:])
	}
	if !bytes.Equal(hash(u[32:40]), u[:32]) {
		return nil, false
	}
	block, err := aes.NewCipher(hash(u[40:48]))
	if err != nil {
		return nil, false
	}
	key := make([]byte, 32)
	cipher.NewCBCDecrypter(block, make([]byte, 16)).CryptBlocks(key, []byte(ue)[:32])
	return key, true
}

// hardened is the hash of revision 6, for an empty password.
func hardened(k []byte) []byte {
	for round := 1; ; round++ {
		k1 := bytes.Repeat(k, 64)
		block, err := aes.NewCipher(k[:16])
		if err != nil {
			return nil
		}
		cipher.NewCBCEncrypter(block, k[16:32]).CryptBlocks(k1, k1)
		sum := 0
		for _, c := range k1[:16] {
			sum += int(c)
		}
		switch sum % 3 {
		case 0:
			s := sha256.Sum256(k1)
			k = s[:]
		case 1:
			s := sha512.Sum384(k1)
			k = s[:]
		default:
			s := sha512.Sum512(k1)
			k = s[:]
		}
		if round >= 64 && int(k1[len(k1)-1]) <= round-32 { // the number of rounds that were made
			return k[:32]
		}
	}
}

func (c *crypt) text(s string, id ref) string { return string(c.apply([]byte(s), id, c.texts)) }

// stream decrypts the data of a stream; named is its own filter, if it has one.
func (c *crypt) stream(b []byte, id ref, named name) []byte {
	if named == "Identity" {
		return b
	}
	return c.apply(b, id, c.streams)
}

func (c *crypt) apply(b []byte, id ref, method string) []byte {
	key := c.key
	if method == "V2" || method == "AESV2" {
		h := md5.New()
		h.Write(c.key)
		h.Write([]byte{byte(id.num), byte(id.num >> 8), byte(id.num >> 16), byte(id.gen), byte(id.gen >> 8)})
		if method == "AESV2" {
			h.Write([]byte("sAlT"))
		}
		key = h.Sum(nil)[:min(16, len(c.key)+5)]
	}
	switch method {
	case "V2":
		rc, err := rc4.NewCipher(key)
		if err != nil {
			return nil
		}
		out := make([]byte, len(b))
		rc.XORKeyStream(out, b)
		return out
	case "AESV2", "AESV3":
		if len(b) < 32 {
			return nil
		}
		block, err := aes.NewCipher(key)
		if err != nil {
			return nil
		}
		data := b[16 : len(b)-len(b)%16]
		out := make([]byte, len(data))
		cipher.NewCBCDecrypter(block, b[:16]).CryptBlocks(out, data)
		if n := len(out); n > 0 {
			if pad := int(out[n-1]); pad >= 1 && pad <= 16 && pad <= n {
				out = out[:n-pad]
			}
		}
		return out
	}
	return b
}
