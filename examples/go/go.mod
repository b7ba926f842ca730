module example.com/site

go 1.26.0

require github.com/countd/countd v0.0.0

require github.com/google/uuid v1.6.0 // indirect

replace github.com/countd/countd => ../..
