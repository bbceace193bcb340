module cozystack.io/gpu/hack/images

go 1.26.0
