// An extension of OpenVINO with an operator of its own, which doubles floats.

#include <memory>
#include <openvino/core/extension.hpp>
#include <openvino/core/op_extension.hpp>
#include <openvino/op/op.hpp>

struct Twice : ov::op::Op {
    OPENVINO_OP("Twice", "native");
    Twice() = default;
    explicit Twice(const ov::OutputVector &inputs) : Op(inputs) { constructor_validate_and_infer_types(); }
    void validate_and_infer_types() override {
        set_output_type(0, get_input_element_type(0), get_input_partial_shape(0));
    }
    std::shared_ptr<ov::Node> clone_with_new_inputs(const ov::OutputVector &inputs) const override {
        return std::make_shared<Twice>(inputs);
    }
    bool visit_attributes(ov::AttributeVisitor &) override { return true; }
    bool has_evaluate() const override { return true; }
    bool evaluate(ov::TensorVector &outputs, const ov::TensorVector &inputs) const override {
        outputs[0].set_shape(inputs[0].get_shape());
        for (size_t index = 0; index < inputs[0].get_size(); index++)
            outputs[0].data<float>()[index] = 2 * inputs[0].data<float>()[index];
        return true;
    }
};

OPENVINO_CREATE_EXTENSIONS({std::make_shared<ov::OpExtension<Twice>>()});
