package cluster

import (
	"errors"
	"strings"
	"testing"

	"github.com/countd/countd/shard/rpc"
)

// widestMember returns a member with the longest value in each field.
func widestMember() Member {
	name := strings.Repeat("n", nodeIDBytesMax)
	return Member{
		Key: name + ".89abcdef", Name: name, ClusterID: strings.Repeat("ff", clusterIDBytes), ClusterName: strings.Repeat("c", rpc.ClusterNameBytesMax), Zone: strings.Repeat("z", nodeIDBytesMax),
		HTTPAddr: strings.Repeat("h", AddrBytesMax), ClusterAddr: strings.Repeat("c", AddrBytesMax), GossipAddr: "127.0.0.1:1",
		Version: strings.Repeat("v", programBytesMax), VersionMax: 65535, Expect: ExpectMax, State: 255,
	}
}

func TestLongestMetadataFits(t *testing.T) {
	m := widestMember()
	if err := m.check(); err != nil {
		t.Fatal(err)
	}
	if n := len(appendMeta(nil, &m)); n > metaBytesMax {
		t.Errorf("%d bytes of metadata, gossip takes %d", n, metaBytesMax)
	}
}

func TestMemberComesBack(t *testing.T) {
	widest := widestMember()
	long := widest
	long.Version += "-dirty"
	for name, tc := range map[string]struct{ in, want Member }{
		"widest":           {widest, widest},
		"a longer version": {long, widest},
		"narrowest":        {Member{Key: "a.01234567", Name: "a"}, Member{Key: "a.01234567", Name: "a"}},
	} {
		t.Run(name, func(t *testing.T) {
			meta := appendMeta(nil, &tc.in)
			got, err := parseMember(tc.in.Key, tc.in.GossipAddr, meta)
			if err != nil || got != tc.want {
				t.Fatalf("%+v, %v came back of\n%+v", got, err, tc.in)
			}
			if got, err = parseMember(tc.in.Key, tc.in.GossipAddr, append(meta, "of a later version"...)); err != nil || got != tc.want {
				t.Errorf("with more behind it: %+v, %v", got, err)
			}
			for n := range len(meta) {
				if _, err := parseMember(tc.in.Key, "", meta[:n]); !errors.Is(err, errBadMember) {
					t.Fatalf("of %d bytes: error %v, want errBadMember", n, err)
				}
			}
		})
	}
}

func TestMembersThatAreNone(t *testing.T) {
	for name, spoil := range map[string]func(*Member){
		"no key":              func(m *Member) { m.Key = "" },
		"another's name":      func(m *Member) { m.Name = "b" },
		"a name of a cluster": func(m *Member) { m.ClusterName = strings.Repeat("c", rpc.ClusterNameBytesMax+1) },
		"a cluster's name":    func(m *Member) { m.ClusterID = "posts" },
		"a zone of words":     func(m *Member) { m.Zone = "a b" },
		"a long address":      func(m *Member) { m.HTTPAddr = strings.Repeat("h", AddrBytesMax+1) },
		"a long one to dial":  func(m *Member) { m.ClusterAddr = strings.Repeat("h", AddrBytesMax+1) },
		"expects too many":    func(m *Member) { m.Expect = ExpectMax + 1 },
	} {
		m := Member{Key: "a.01234567", Name: "a"}
		spoil(&m)
		if err := m.check(); !errors.Is(err, errBadMember) {
			t.Errorf("%s: error %v, want errBadMember", name, err)
		}
	}
}

func FuzzParseMember(f *testing.F) {
	for _, m := range []Member{widestMember(), {Key: "a.01234567", Name: "a"}} {
		f.Add(m.Key, appendMeta(nil, &m))
	}
	f.Fuzz(func(t *testing.T, key string, meta []byte) {
		m, err := parseMember(key, "127.0.0.1:1", meta)
		if err != nil {
			if !errors.Is(err, errBadMember) {
				t.Fatalf("error %v, want errBadMember", err)
			}
			return
		}
		out := appendMeta(nil, &m)
		if again, err := parseMember(key, "127.0.0.1:1", out); err != nil || again != m {
			t.Fatalf("%+v came back as %+v, %v", m, again, err)
		}
	})
}
